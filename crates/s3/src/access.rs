//! Who may do what: secrets for the signatures, and a decision for each request. An administrator's
//! key may do everything; other keys what their user owns or a bucket's policy allows; requests
//! without a signature only what a policy allows.

use crate::errors::OrS3;
use crate::forms::Form;
use crate::policy::{Ask, EXISTING_TAG, HEADER, Policy, REQUEST_TAG, Verdict};
use crate::tab::Tab;
use crate::trail::Note;
use crate::{headers, objects, settings, tags};
use holdfast_blob::{AccessKey, Blobs, Pair};
use holdfast_env::clients::Client;
use holdfast_env::planted;
use hyper::{HeaderMap, Uri};
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::dto::{PutObjectInput, PutObjectTaggingInput};
use s3s::{S3Error, S3Request, S3Result, s3_error};
use std::net::IpAddr;
use std::sync::Arc;

/// The document that a bucket's policy is.
pub const POLICY: &str = "policy";

/// Decides who may do what: an administrator everything, a user what is theirs, the rest by
/// policies.
pub struct Access {
    /// Keys of users, and the buckets' policies.
    pub blobs: Arc<Blobs>,
}

/// Whose request it is; none for one without a signature. Kept with the request.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// The name of the key that signed; none for a request without a signature.
    pub name: Option<String>,
    /// What is known of that key.
    pub key: Option<AccessKey>,
    /// Where it came from; none where the server could not say.
    pub peer: Option<Peer>,
}

/// Where a request came from; the server notes it with the request.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Of the connection's other end.
    pub address: IpAddr,
    /// Whether it came over TLS.
    pub is_encrypted: bool,
}

/// What a request wants to do, to a bucket or to one of its keys.
pub struct Asked<'a> {
    /// S3's own name for it, such as `GetObject`.
    pub operation: &'a str,
    pub bucket: &'a str,
    /// Empty for the bucket itself.
    pub key: &'a str,
    /// Of the key; none for the newest.
    pub version: Option<&'a str>,
    /// The request's.
    pub headers: &'a HeaderMap,
    /// The request's.
    pub uri: &'a Uri,
    /// Tags that it sets.
    pub tags: &'a [Pair],
}

impl Caller {
    /// The name behind the key that signed.
    pub fn user(&self) -> Option<&str> {
        self.key.as_ref().map(|key| key.user.as_str())
    }

    /// Whether an administrator's key signed.
    pub fn is_admin(&self) -> bool {
        self.key.as_ref().is_some_and(|key| key.admin)
    }
}

#[async_trait::async_trait]
impl S3Auth for Access {
    async fn get_secret_key(&self, name: &str) -> S3Result<SecretKey> {
        match self.blobs.access_key(name).or_s3()? {
            Some(key) => Ok(SecretKey::from(key.secret)),
            None => Err(s3_error!(InvalidAccessKeyId, "access key `{name}` is not known")),
        }
    }
}

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        let key = match cx.credentials() {
            Some(credentials) => self.blobs.access_key(&credentials.access_key).or_s3()?,
            None => None,
        };
        let name = cx.credentials().map(|credentials| credentials.access_key.clone());
        let peer = cx.extensions_mut().get::<Peer>().copied();
        let client = client_of(key.as_ref(), name.as_deref(), peer);
        let tab = cx.extensions_mut().get::<Arc<Tab>>().cloned();
        let caller = Caller { name, key, peer };
        if let Some(note) = cx.extensions_mut().get::<Note>().cloned() {
            let asked = (cx.s3_path(), cx.uri(), cx.headers());
            note.operation(&caller, cx.s3_op().name(), asked);
        }
        // What is refused costs a turn, too, of who has proved to be somebody, or of where it came from:
        // so nobody can use up another's.
        if let Some(tab) = tab {
            tab.wait(client).await?;
        }
        let decided = self.check_context(&caller, cx);
        // Strangers must not make the log grow by reading.
        let waits = caller.key.is_some() && wants_latest(cx.headers())?;
        cx.extensions_mut().insert(caller);
        decided?;
        if waits && !planted!("s3.latest-waits-for-nothing") {
            self.blobs.catch_up().await.or_s3()?;
        }
        settings::check_grant_headers(cx.headers())?;
        objects::refuse_encryption(cx.headers())
    }

    /// The key of a form is known only now.
    async fn put_object(&self, req: &mut S3Request<PutObjectInput>) -> S3Result<()> {
        let Some(form) = req.extensions.get::<Form>() else { return Ok(()) };
        form.check(
            self,
            &crate::service::caller(req),
            (&req.input.bucket, &req.input.key),
            &req.uri,
        )
    }

    /// The tags are known only now.
    async fn put_object_tagging(&self, req: &mut S3Request<PutObjectTaggingInput>) -> S3Result<()> {
        let asked = Asked {
            operation: "PutObjectTagging",
            bucket: &req.input.bucket,
            key: &req.input.key,
            version: req.input.version_id.as_deref(),
            headers: &req.headers,
            uri: &req.uri,
            tags: &tags::of_object(req.input.tagging.clone())?,
        };
        self.check_one(&crate::service::caller(req), &asked)
    }
}

/// As whom a request is counted; an administrator's is not.
pub fn client_of(
    key: Option<&AccessKey>,
    name: Option<&str>,
    peer: Option<Peer>,
) -> Option<Client> {
    match (key, name) {
        (Some(key), _) if key.admin => None,
        (Some(_), Some(name)) => Some(Client::Key(name.to_owned())),
        _ => peer.map(|peer| Client::at(peer.address)),
    }
}

/// A reader that was told of a write at another node asks for it to be seen here, too.
const READ: &str = "x-holdfast-read";

fn wants_latest(headers: &HeaderMap) -> S3Result<bool> {
    match headers.get(READ).map(|value| value.as_bytes()) {
        None => Ok(false),
        Some(b"latest") => Ok(true),
        Some(_) => Err(s3_error!(InvalidArgument, "{READ} is `latest` or is not sent")),
    }
}

/// The refusal that says no more than S3's own: what is there is nobody's business who may not see
/// it.
pub fn denied() -> S3Error {
    s3_error!(AccessDenied, "Access Denied")
}

impl Access {
    fn check_context(&self, caller: &Caller, cx: &S3AccessContext<'_>) -> S3Result<()> {
        let (path, headers) = (cx.s3_path(), cx.headers());
        let Some(bucket) = path.get_bucket_name() else {
            // Which buckets are shown is decided one by one.
            return caller.key.is_some().then_some(()).ok_or_else(denied);
        };
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        if header("x-amz-acl").is_some_and(settings::is_public_acl)
            && let Ok(bucket) = self.blobs.bucket(bucket)
            && settings::blocked(&bucket).block_public_acls == Some(true)
        {
            return Err(denied());
        }
        let operation = cx.s3_op().name();
        headers::check(operation, headers)?;
        if headers.contains_key("x-amz-expected-bucket-owner") && operation != "CreateBucket" {
            headers::check_owner(&self.blobs.bucket(bucket).or_s3()?.owner, headers)?;
        }
        // Each key is checked for itself, and what else they ask for.
        if ["DeleteObjects", "PostObject", "PutObjectTagging"].contains(&operation) {
            let found = self.blobs.bucket(bucket).or_s3()?;
            // Nothing in the body can help a stranger whom no policy knows: it is not taken. A form
            // has its signature in it.
            let stranger = caller.key.is_none() && operation != "PostObject";
            let refused = stranger && found.document(POLICY).is_none();
            return match refused && !planted!("s3.bodies-of-strangers-taken") {
                true => Err(denied()),
                false => Ok(()),
            };
        }
        let version = query(cx.uri(), "versionId");
        let asked = Asked {
            operation,
            bucket,
            key: path.get_object_key().unwrap_or_default(),
            version: version.as_deref(),
            headers,
            uri: cx.uri(),
            tags: &tags::parse_header(header("x-amz-tagging"))?,
        };
        self.check_one(caller, &asked)
    }

    /// Whether a caller may do an operation to a bucket or one of its keys.
    pub fn check_one(&self, caller: &Caller, asked: &Asked<'_>) -> S3Result<()> {
        let &Asked { operation, bucket, key, .. } = asked;
        if caller.is_admin() {
            return Ok(());
        }
        if let Some(own) = &caller.key {
            let elsewhere = !own.buckets.is_empty() && !own.buckets.iter().any(|b| b == bucket);
            if elsewhere || (own.read_only && !is_read(operation)) {
                return Err(denied());
            }
        }
        if operation == "CreateBucket" {
            return caller.key.as_ref().map(drop).ok_or_else(denied);
        }
        let found = self.blobs.bucket(bucket).or_s3()?;
        let policy = found.document(POLICY).map(|text| Policy::parse(text, bucket));
        let policy = policy.transpose().map_err(|_| denied())?;
        let restricted = caller.key.is_none()
            && settings::blocked(&found).restrict_public_buckets == Some(true)
            && policy.as_ref().is_some_and(Policy::is_public);
        let owns = caller
            .key
            .as_ref()
            .is_some_and(|own| own.user == found.owner || own.buckets.iter().any(|b| b == bucket));
        let lookup = |name: &str| self.value(caller, asked, name);
        for action in actions(asked) {
            let action = format!("s3:{action}");
            let ask = Ask { user: caller.user(), action: &action, bucket, key, lookup: &lookup };
            match policy.as_ref().map_or(Verdict::Nothing, |policy| policy.judge(&ask)) {
                Verdict::Deny => return Err(denied()),
                Verdict::Allow if !restricted => {}
                _ if owns => {}
                _ => return Err(denied()),
            }
        }
        Ok(())
    }

    /// What a request says where a policy's condition asks.
    fn value(&self, caller: &Caller, asked: &Asked<'_>, name: &str) -> Option<String> {
        let tag = |tags: &[Pair], name: &str| {
            tags.iter().find(|tag| tag.name == name).map(|tag| tag.value.clone())
        };
        let header = |name: &str| Some(asked.headers.get(name)?.to_str().ok()?.to_owned());
        if let Some(name) = name.strip_prefix(EXISTING_TAG) {
            let object = self.blobs.object(asked.bucket, asked.key, asked.version).ok()?;
            return tag(&object.head.tags, name);
        }
        if let Some(name) = name.strip_prefix(REQUEST_TAG) {
            return tag(asked.tags, name);
        }
        match name {
            "aws:referer" => header("referer"),
            "aws:securetransport" => {
                let is_encrypted = caller.peer.is_some_and(|peer| peer.is_encrypted);
                Some(is_encrypted.to_string())
            }
            "aws:sourceip" => caller.peer.map(|peer| peer.address.to_string()),
            "aws:useragent" => header("user-agent"),
            "aws:username" => caller.user().map(str::to_owned),
            "s3:delimiter" => query(asked.uri, "delimiter"),
            "s3:max-keys" => query(asked.uri, "max-keys"),
            "s3:prefix" => query(asked.uri, "prefix"),
            "s3:versionid" => asked.version.map(str::to_owned),
            // `BUCKET/KEY`, whatever the client made of it; in it a plus is a plus.
            "s3:x-amz-copy-source" => {
                let source = header("x-amz-copy-source")?.replace('+', "%2B");
                let source = tags::percent_decode(&source)?;
                Some(source.strip_prefix('/').unwrap_or(&source).to_owned())
            }
            name if name.starts_with(HEADER) => header(name.strip_prefix("s3:")?),
            _ => None,
        }
    }
}

/// A parameter of a request's, decoded.
pub fn query(uri: &Uri, name: &str) -> Option<String> {
    let pairs = uri.query()?.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let (_, value) = pairs.into_iter().find(|(found, _)| *found == name)?;
    tags::percent_decode(value)
}

/// Whether an operation only looks, by its name.
pub fn is_read(operation: &str) -> bool {
    ["Get", "Head", "List"].iter().any(|start| operation.starts_with(start))
}

/// What one must be allowed for a request, by the names that policies know it by.
fn actions(asked: &Asked<'_>) -> Vec<String> {
    let mut actions = vec![action(asked.operation).to_owned()];
    if asked.version.is_some() {
        for kind in ["GetObject", "DeleteObject", "PutObject"] {
            // `GetObject` becomes `GetObjectVersion`, `GetObjectTagging` `GetObjectVersionTagging`.
            if let Some(rest @ ("" | "Tagging" | "Acl")) = actions[0].strip_prefix(kind) {
                actions[0] = format!("{kind}Version{rest}");
                break;
            }
        }
    }
    let has = |name: &str| asked.headers.contains_key(name);
    let puts = actions[0] == "PutObject";
    let more = [
        (puts && !asked.tags.is_empty(), "PutObjectTagging"),
        (puts && has("x-amz-object-lock-mode"), "PutObjectRetention"),
        (puts && has("x-amz-object-lock-legal-hold"), "PutObjectLegalHold"),
        (has("x-amz-bypass-governance-retention"), "BypassGovernanceRetention"),
    ];
    actions.extend(more.into_iter().filter(|(asked, _)| *asked).map(|(_, name)| name.to_owned()));
    actions
}

/// The name that policies know an operation by.
fn action(operation: &str) -> &str {
    match operation {
        "HeadObject" | "GetObjectAttributes" => "GetObject",
        "HeadBucket" | "ListObjects" | "ListObjectsV2" => "ListBucket",
        "ListObjectVersions" => "ListBucketVersions",
        "ListMultipartUploads" => "ListBucketMultipartUploads",
        "ListParts" => "ListMultipartUploadParts",
        "CreateMultipartUpload"
        | "UploadPart"
        | "UploadPartCopy"
        | "CompleteMultipartUpload"
        | "CopyObject"
        | "PostObject" => "PutObject",
        "PutBucketLifecycleConfiguration" | "DeleteBucketLifecycle" => "PutLifecycleConfiguration",
        "GetBucketLifecycleConfiguration" => "GetLifecycleConfiguration",
        "PutBucketCors" | "DeleteBucketCors" => "PutBucketCORS",
        "GetBucketCors" => "GetBucketCORS",
        "GetPublicAccessBlock" => "GetBucketPublicAccessBlock",
        "PutPublicAccessBlock" | "DeletePublicAccessBlock" => "PutBucketPublicAccessBlock",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_needs_every_action_that_it_is() {
        let uri = Uri::from_static("/b/k?prefix=a%2Fb&versionId=1");
        let of = |operation: &str, version: Option<&str>, header: &'static str, tags: &[Pair]| {
            let mut headers = HeaderMap::new();
            headers.insert(header, hyper::header::HeaderValue::from_static("true"));
            let (bucket, key) = ("b", "k");
            let (headers, uri) = (&headers, &uri);
            actions(&Asked { operation, bucket, key, version, headers, uri, tags })
        };
        let (other, tag) = ("x-other", Pair::new("a", "b"));
        assert_eq!(of("HeadObject", None, other, &[]), ["GetObject"]);
        assert_eq!(of("HeadObject", Some("1"), other, &[]), ["GetObjectVersion"]);
        assert_eq!(of("GetObjectTagging", Some("1"), other, &[]), ["GetObjectVersionTagging"]);
        assert_eq!(of("GetObjectRetention", Some("1"), other, &[]), ["GetObjectRetention"]);
        let bypass = "x-amz-bypass-governance-retention";
        assert_eq!(
            of("DeleteObject", Some("1"), bypass, &[]),
            ["DeleteObjectVersion", "BypassGovernanceRetention"]
        );
        assert_eq!(
            of("CreateMultipartUpload", None, "x-amz-object-lock-mode", &[tag]),
            ["PutObject", "PutObjectTagging", "PutObjectRetention"]
        );
        assert_eq!(query(&uri, "prefix").as_deref(), Some("a/b"));
        assert_eq!(query(&uri, "suffix"), None);
    }
}
