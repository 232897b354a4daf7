//! What administrators ask for beside S3: users and keys, checks and repairs. `POST /?holdfast=WHAT`
//! with a JSON object, signed as any request; answers with JSON.

use crate::access::{Caller, client_of};
use crate::credentials::random_key;
use crate::errors::OrS3;
use crate::hot::Hot;
use crate::scale::PhotoSizes;
use crate::tab::Tab;
use crate::trail::Note;
use holdfast_base::Result;
use holdfast_blob::{AccessKey, Blobs, Housekeeping};
use holdfast_env::{runtime, tasks};
use holdfast_node::Matter;
use hyper::{HeaderMap, Method, Uri};
use s3s::route::S3Route;
use s3s::{Body, S3Request, S3Response, S3Result, s3_error};
use serde_json::{Value, json};
use std::sync::Arc;

const BODY_BYTES_MAX: usize = 64 << 10;
/// Orders that change something; the others only look.
const CHANGES: [&str; 6] =
    ["add-key", "remove-key", "remove-user", "photos", "compact", "rebuild-index"];

/// Answers them, to administrators alone.
pub struct Admin {
    /// What they ask about and change.
    pub blobs: Arc<Blobs>,
    /// Whose counts they may see.
    pub hot: Arc<Hot>,
}

fn what(uri: &Uri) -> Option<&str> {
    uri.query()?.split('&').find_map(|pair| pair.strip_prefix("holdfast="))
}

#[async_trait::async_trait]
impl S3Route for Admin {
    fn is_match(
        &self,
        method: &Method,
        uri: &Uri,
        _: &HeaderMap,
        _: &mut hyper::http::Extensions,
    ) -> bool {
        *method == Method::POST && uri.path() == "/" && what(uri).is_some()
    }

    async fn call(&self, req: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let credentials = req.credentials.as_ref().ok_or_else(crate::access::denied)?;
        let name = credentials.access_key.clone();
        let key = self.blobs.access_key(&name).or_s3()?;
        if let Some(tab) = req.extensions.get::<Arc<Tab>>() {
            tab.wait(client_of(key.as_ref(), Some(&name), None)).await?;
        }
        let what = what(&req.uri).unwrap_or_default().to_owned();
        let caller = Caller { name: Some(name), key, peer: None };
        let note = req.extensions.get::<Note>();
        let note = note.filter(|_| CHANGES.contains(&what.as_str())).cloned();
        // An order has no secret in it, its answer may.
        let tell =
            |said: String| note.inspect(|note| note.deed(&caller, Matter::Admin, &what, said));
        if !caller.is_admin() {
            tell(String::new());
            return Err(crate::access::denied());
        }
        let mut body = req.input;
        let bytes = body.store_all_limited(BODY_BYTES_MAX).await;
        let bytes = bytes.map_err(|_| s3_error!(InvalidRequest, "the body is too long"))?;
        let asked: Value = match bytes.is_empty() {
            true => json!({}),
            false => serde_json::from_slice(&bytes)
                .map_err(|e| s3_error!(InvalidRequest, "the body is not JSON: {e}"))?,
        };
        let answered = self.answer(&what, &asked).await;
        let made = answered.as_ref().ok().and_then(|answer| text(answer, "access_key"));
        tell(made.map_or(asked.to_string(), |key| format!("{asked}: {key}")));
        let answer = answered?;
        Ok(S3Response::new(Body::from(answer.to_string())))
    }
}

fn text(asked: &Value, name: &str) -> Option<String> {
    asked.get(name)?.as_str().map(str::to_owned)
}

/// Runs what reads everything on a thread of its own: it takes long, and others are served here.
async fn apart<T: Send + 'static>(
    blobs: &Arc<Blobs>,
    work: impl FnOnce(&Arc<Blobs>) -> Result<T> + Send + 'static,
) -> S3Result<T> {
    let blobs = blobs.clone();
    let done = runtime::answer(|done: Box<dyn FnOnce(Result<T>) + Send>| {
        // A thread that cannot be had is an answer that never comes.
        let _ = tasks::spawn("blob-admin", move || done(work(&blobs)));
    });
    match done.await {
        Some(done) => done.or_s3(),
        None => Err(s3_error!(ServiceUnavailable, "the node could not start the work")),
    }
}

impl Admin {
    async fn answer(&self, what: &str, asked: &Value) -> S3Result<Value> {
        let blobs = &self.blobs;
        match what {
            "keys" => self.keys(),
            "add-key" => self.add_key(asked).await,
            "remove-key" => self.remove_key(asked).await,
            "remove-user" => self.remove_user(asked).await,
            "cache" => {
                let counts = self.hot.counts();
                Ok(json!({
                    "hits": counts.hits, "misses": counts.misses, "admitted": counts.admitted,
                    "bytes": counts.bytes, "objects": counts.objects,
                }))
            }
            "photos" => self.photos(asked).await,
            "verify" => {
                let found = apart(blobs, |blobs| blobs.verify()).await?;
                Ok(
                    json!({"objects": found.objects, "bytes": found.bytes, "damaged": found.damaged}),
                )
            }
            "compact" => {
                let chunks = apart(blobs, |blobs| Housekeeping::new(blobs).compact_all()).await?;
                Ok(json!({"chunks": chunks}))
            }
            "rebuild-index" => {
                let made = apart(blobs, |blobs| blobs.rebuild()).await?;
                Ok(json!({
                    "needles": made.needles, "objects": made.objects, "known": made.known,
                    "refused": made.refused,
                }))
            }
            other => Err(s3_error!(NotImplemented, "`holdfast={other}` is not implemented")),
        }
    }

    fn keys(&self) -> S3Result<Value> {
        let shown = self.blobs.access_keys().or_s3()?.into_iter().map(|(name, key)| {
            json!({
                "access_key": name, "user": key.user, "admin": key.admin,
                "read_only": key.read_only, "buckets": key.buckets,
                "created_ms": key.created_ms,
            })
        });
        Ok(Value::Array(shown.collect()))
    }

    async fn remove_key(&self, asked: &Value) -> S3Result<Value> {
        let name = text(asked, "access_key").unwrap_or_default();
        if self.blobs.access_key(&name).or_s3()?.is_none() {
            return Err(s3_error!(InvalidAccessKeyId, "access key `{name}` is not known"));
        }
        self.keep_an_admin(&[&name])?;
        self.blobs.set_access_key(&name, None).await.or_s3()?;
        Ok(json!({"removed": [name]}))
    }

    async fn remove_user(&self, asked: &Value) -> S3Result<Value> {
        let user = text(asked, "user").unwrap_or_default();
        let keys = self.blobs.access_keys().or_s3()?;
        let names: Vec<&str> = keys
            .iter()
            .filter(|(_, key)| key.user == user)
            .map(|(name, _)| name.as_str())
            .collect();
        if names.is_empty() {
            return Err(s3_error!(InvalidRequest, "user `{user}` is not known"));
        }
        self.keep_an_admin(&names)?;
        for name in &names {
            self.blobs.set_access_key(name, None).await.or_s3()?;
        }
        Ok(json!({"removed": names}))
    }

    /// Sets the sizes that a bucket keeps photos in, if any are said; answers those that it has.
    async fn photos(&self, asked: &Value) -> S3Result<Value> {
        let bucket = text(asked, "bucket").unwrap_or_default();
        let document = PhotoSizes::DOCUMENT;
        if let Some(sizes) = asked.get("sizes") {
            let sizes = match sizes.as_str() {
                None => None,
                Some(text) => Some(
                    PhotoSizes::parse(text)
                        .map_err(|why| s3_error!(InvalidRequest, "{why}"))?
                        .to_string(),
                ),
            };
            self.blobs.set_document(&bucket, document, sizes).await.or_s3()?;
        }
        let found = self.blobs.bucket(&bucket).or_s3()?;
        Ok(json!({"bucket": bucket, "sizes": found.document(document)}))
    }

    async fn add_key(&self, asked: &Value) -> S3Result<Value> {
        let user = text(asked, "user").filter(|user| !user.is_empty() && user.len() <= 64);
        let user =
            user.ok_or_else(|| s3_error!(InvalidRequest, "name a user, in at most 64 bytes"))?;
        let flag = |name: &str| asked.get(name).and_then(Value::as_bool).unwrap_or(false);
        let buckets = asked.get("buckets").and_then(Value::as_array);
        let buckets = buckets.into_iter().flatten().filter_map(|b| b.as_str().map(str::to_owned));
        let (name, secret) = random_key(&*self.blobs.node().machine.rng);
        let key = AccessKey {
            secret: secret.clone(),
            user: user.clone(),
            created_ms: self.blobs.now_ms(),
            admin: flag("admin"),
            read_only: flag("read_only"),
            buckets: buckets.collect(),
        };
        self.blobs.set_access_key(&name, Some(key)).await.or_s3()?;
        Ok(json!({"user": user, "access_key": name, "secret_key": secret}))
    }

    /// Without an administrator's key nobody could make one.
    fn keep_an_admin(&self, going: &[&str]) -> S3Result<()> {
        let keys = self.blobs.access_keys().or_s3()?;
        let left = keys.iter().any(|(name, key)| key.admin && !going.contains(&name.as_str()));
        match left {
            true => Ok(()),
            false => Err(s3_error!(
                InvalidRequest,
                "this is the last administrator's key: make another one first"
            )),
        }
    }
}
