//! What S3 tells the audit trail: who asked for what that changes something, and how it was answered.
//! Whoever decides about a request notes what it is; the port writes it down with the answer.

use crate::access::{Caller, is_read, query};
use crate::client::element;
use holdfast_base::{Error, Kind};
use holdfast_env::runtime;
use holdfast_node::{Answered, Audit, Deed, Matter};
use hyper::{HeaderMap, Response, StatusCode, Uri};
use s3s::Body;
use s3s::path::S3Path;
use std::sync::{Arc, OnceLock};

/// Travels with a request until it is known who asks for what; nothing is noted of what only reads.
#[derive(Clone, Default)]
pub struct Note(Arc<Pages>);

#[derive(Default)]
struct Pages {
    noted: OnceLock<Noted>,
    told: OnceLock<Told>,
}

/// What only the request's body says, or only its answer's.
struct Told {
    /// Behind the path.
    what: String,
    /// Why nothing came of it, where the answer is none of an error.
    refused: Option<Error>,
}

struct Noted {
    matter: Matter,
    is_stranger: bool,
    who: String,
    operation: String,
    what: String,
}

impl Note {
    /// Of an operation of S3's by its name, on a bucket or a key.
    pub fn operation(
        &self,
        caller: &Caller,
        operation: &str,
        (path, uri, headers): (&S3Path, &Uri, &HeaderMap),
    ) {
        let Some(matter) = matter_of(operation) else { return };
        let locks = LOCKS.iter().any(|name| headers.contains_key(*name));
        let matter = if locks { Matter::Admin } else { matter };
        let names = [path.get_bucket_name(), path.get_object_key()];
        let mut what = names.into_iter().flatten().collect::<Vec<_>>().join("/");
        if let Some(version) = query(uri, "versionId") {
            what += &format!(" version {version}");
        }
        if let Some(source) = headers.get("x-amz-copy-source") {
            what += &format!(" from {}", String::from_utf8_lossy(source.as_bytes()));
        }
        self.deed(caller, matter, operation, what);
    }

    /// Of anything else; the first note stays.
    pub fn deed(&self, caller: &Caller, matter: Matter, operation: &str, what: String) {
        let who = match (&caller.name, caller.user()) {
            (Some(name), Some(user)) => format!("key {name} of {user}"),
            _ => "anonymous".to_owned(),
        };
        let (is_stranger, operation) = (caller.key.is_none(), operation.to_owned());
        let _ = self.0.noted.set(Noted { matter, is_stranger, who, operation, what });
    }

    /// Of a form: which key it names.
    pub fn key(&self, key: &str) {
        let _ = self.0.told.set(Told { what: format!("/{key}"), refused: None });
    }

    /// Of the removal of many keys: which are gone, and which are not, with the code of the error that
    /// says why. Who removes none of them is told that it went well, and each error in the answer.
    pub fn removed<'k>(
        &self,
        gone: impl ExactSizeIterator<Item = &'k str>,
        kept: impl ExactSizeIterator<Item = (&'k str, &'k str)> + Clone,
    ) {
        let (done, all) = (gone.len(), gone.len() + kept.len());
        let mut what = format!(": {done} of {all} keys");
        // In front, since a long list is cut.
        for (key, code) in kept.clone() {
            what += &format!(", not `{key}` ({code})");
        }
        gone.for_each(|key| what += &format!(", `{key}`"));
        let refused = kept.into_iter().next().filter(|_| done == 0).map(|(_, code)| {
            let kind = if code == "AccessDenied" { Kind::Denied } else { Kind::Invalid };
            Error::new(kind, code.to_owned())
        });
        let _ = self.0.told.set(Told { what, refused });
    }

    /// Writes down how the request was answered, if anything is noted of it that is kept; returns
    /// when that is done.
    pub async fn keep(
        &self,
        audit: &Arc<Audit>,
        (address, request): (String, &str),
        response: &Response<Body>,
    ) {
        let noted = self.0.noted.get().filter(|noted| audit.wants(noted.matter));
        let (Some(noted), told) = (noted, self.0.told.get()) else { return };
        let Noted { is_stranger, who, operation, what, .. } = noted;
        let deed = Deed {
            who: who.clone(),
            address,
            request: request.to_owned(),
            operation: format!("s3 {operation}"),
            what: what.clone() + told.map_or("", |told| &told.what),
        };
        let outcome = outcome(response).or_else(|| told?.refused.clone());
        // Nobody answers for it, and everybody could fill the trail with it.
        if outcome.is_some() && *is_stranger {
            return;
        }
        let kept = |done: Box<dyn FnOnce(()) + Send>| {
            let answered: Answered = Box::new(move || done(()));
            audit.record(&deed, outcome.as_ref(), answered);
        };
        runtime::answer(kept).await;
    }
}

/// Headers of puts and deletions that say how long nobody may delete an object, or that somebody does
/// all the same.
const LOCKS: [&str; 4] = [
    "x-amz-object-lock-mode",
    "x-amz-object-lock-retain-until-date",
    "x-amz-object-lock-legal-hold",
    "x-amz-bypass-governance-retention",
];

/// What an operation changes, by its name.
fn matter_of(operation: &str) -> Option<Matter> {
    // Of an object who may read it, and how long nobody may delete it.
    let rights =
        ["Bucket", "PublicAccessBlock", "Acl", "LockConfiguration", "Retention", "LegalHold"];
    match rights.iter().any(|part| operation.contains(part)) {
        _ if is_read(operation) => None,
        true => Some(Matter::Admin),
        false => Some(Matter::Data),
    }
}

/// The kind of an answer that is an error, and its code.
fn outcome(response: &Response<Body>) -> Option<Error> {
    let status = response.status();
    let kind = match status {
        _ if status.as_u16() < 400 => return None,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Kind::Denied,
        StatusCode::NOT_FOUND => Kind::NotFound,
        StatusCode::CONFLICT => Kind::Exists,
        StatusCode::INSUFFICIENT_STORAGE => Kind::Full,
        _ if status.is_server_error() => Kind::Retry,
        _ => Kind::Invalid,
    };
    let document = response.body().bytes().unwrap_or_default();
    let code = element(&String::from_utf8_lossy(&document), "Code").unwrap_or_default();
    Some(Error::new(kind, format!("{} {code}", status.as_u16())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reads_is_not_noted_and_what_gives_rights_is_administration() {
        for (operation, matter) in [
            ("GetObject", None),
            ("HeadBucket", None),
            ("ListBuckets", None),
            ("GetBucketPolicy", None),
            ("GetObjectLockConfiguration", None),
            ("CreateBucket", Some(Matter::Admin)),
            ("DeleteBucketPolicy", Some(Matter::Admin)),
            ("PutPublicAccessBlock", Some(Matter::Admin)),
            ("PutObjectAcl", Some(Matter::Admin)),
            ("PutObjectRetention", Some(Matter::Admin)),
            ("PutObjectLegalHold", Some(Matter::Admin)),
            ("PutObjectLockConfiguration", Some(Matter::Admin)),
            ("PutObject", Some(Matter::Data)),
            ("PostObject", Some(Matter::Data)),
            ("DeleteObjects", Some(Matter::Data)),
            ("UploadPart", Some(Matter::Data)),
            ("CompleteMultipartUpload", Some(Matter::Data)),
            ("PutObjectTagging", Some(Matter::Data)),
        ] {
            assert_eq!(matter_of(operation), matter, "{operation}");
        }
    }

    #[test]
    fn an_answer_says_what_came_of_the_request() {
        let answer = |status: u16, body: &'static str| {
            let mut response = Response::new(Body::from(body.to_owned()));
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            outcome(&response)
        };
        assert_eq!(answer(200, ""), None);
        let denied = answer(403, "<Error><Code>AccessDenied</Code></Error>");
        assert_eq!(denied, Some(Error::denied("403 AccessDenied")));
        assert_eq!(answer(503, "busy").map(|e| e.kind), Some(Kind::Retry));
        assert_eq!(answer(507, "").map(|e| e.kind), Some(Kind::Full));
        assert_eq!(answer(412, "").map(|e| e.kind), Some(Kind::Invalid));
    }
}
