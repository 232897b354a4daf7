//! A bucket's settings, kept as documents beside it: policy, CORS, lifecycle; and what stands in
//! for access control lists, of which only the private one exists.

use crate::access::POLICY;
use crate::buckets::owner;
use crate::errors::OrS3;
use crate::policy::Policy as Parsed;
use crate::service::Face;
use holdfast_blob::Bucket;
use hyper::{HeaderMap, StatusCode};
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use serde_json as json;

/// The document that a bucket's CORS rules are.
pub const CORS: &str = "cors";
/// The document that a bucket's lifecycle rules are.
pub const LIFECYCLE: &str = "lifecycle";
const PUBLIC_ACCESS: &str = "public-access-block";

/// A document that was stored as JSON.
pub fn document<T: for<'d> serde::Deserialize<'d>>(
    face: &Face,
    bucket: &str,
    name: &str,
) -> S3Result<Option<T>> {
    let bucket = face.blobs.bucket(bucket).or_s3()?;
    let Some(text) = bucket.document(name) else { return Ok(None) };
    let parsed = json::from_str(text);
    parsed.map(Some).map_err(|e| s3_error!(InternalError, "read the bucket's `{name}`: {e}"))
}

/// Keeps a document as JSON, or removes it.
pub async fn set_document<T: serde::Serialize>(
    face: &Face,
    bucket: &str,
    name: &str,
    value: Option<&T>,
) -> S3Result<()> {
    let text = value.map(json::to_string).transpose();
    let text = text.map_err(|e| s3_error!(InternalError, "keep the bucket's `{name}`: {e}"))?;
    face.blobs.set_document(bucket, name, text).await.or_s3()
}

/// Whether a canned list would give access to strangers.
pub fn is_public_acl(acl: &str) -> bool {
    ["public-read", "public-read-write", "authenticated-read"].contains(&acl)
}

/// What a bucket does not let be given to the public; nothing, unless it was said.
pub fn blocked(bucket: &Bucket) -> PublicAccessBlockConfiguration {
    let said = bucket.document(PUBLIC_ACCESS).and_then(|text| json::from_str(text).ok());
    said.unwrap_or_default()
}

/// Access is given by policies; of the canned lists only those that give none are taken.
pub fn check_acl(acl: Option<&str>) -> S3Result<()> {
    match acl {
        None | Some("private" | "bucket-owner-full-control" | "bucket-owner-read") => Ok(()),
        Some(other) => Err(s3_error!(
            AccessControlListNotSupported,
            "ACL `{other}` is not supported: give access by a bucket policy"
        )),
    }
}

/// As [`check_acl`], of a bucket.
pub fn check_bucket_acl(acl: Option<&BucketCannedACL>) -> S3Result<()> {
    check_acl(acl.map(BucketCannedACL::as_str))
}

/// As [`check_acl`], of an object.
pub fn check_object_acl(acl: Option<&ObjectCannedACL>) -> S3Result<()> {
    check_acl(acl.map(ObjectCannedACL::as_str))
}

/// A list in full, of which there is one: the owner may do everything.
fn check_grants(policy: Option<&AccessControlPolicy>, owner: &str) -> S3Result<()> {
    let Some(policy) = policy else { return Ok(()) };
    let to_owner = |grant: &Grant| {
        let grantee = grant.grantee.as_ref().and_then(|grantee| grantee.id.as_deref());
        let permission = grant.permission.as_ref().map(Permission::as_str);
        grantee == Some(owner) && permission == Some(Permission::FULL_CONTROL)
    };
    match policy.grants.as_deref() {
        Some([only]) if to_owner(only) => Ok(()),
        _ => Err(lists_unsupported()),
    }
}

/// Lists are also given by headers, `x-amz-grant-read` and the like.
pub fn check_grant_headers(headers: &HeaderMap) -> S3Result<()> {
    match headers.keys().any(|name| name.as_str().starts_with("x-amz-grant-")) {
        true => Err(lists_unsupported()),
        false => Ok(()),
    }
}

fn lists_unsupported() -> S3Error {
    s3_error!(AccessControlListNotSupported, "give access by a bucket policy")
}

fn private(user: &str) -> Option<Grants> {
    let grantee = Grantee {
        display_name: Some(user.to_owned()),
        email_address: None,
        id: Some(user.to_owned()),
        type_: Type::from_static(Type::CANONICAL_USER),
        uri: None,
    };
    let permission = Some(Permission::from_static(Permission::FULL_CONTROL));
    Some(vec![Grant { grantee: Some(grantee), permission }])
}

/// The one list there is: the owner may do everything.
pub async fn get_bucket_acl(
    face: &Face,
    req: S3Request<GetBucketAclInput>,
) -> S3Result<S3Response<GetBucketAclOutput>> {
    let user = face.blobs.bucket(&req.input.bucket).or_s3()?.owner;
    Ok(S3Response::new(GetBucketAclOutput { grants: private(&user), owner: Some(owner(&user)) }))
}

/// Takes what changes nothing, and refuses the rest: access is given by policies.
pub async fn put_bucket_acl(
    face: &Face,
    req: S3Request<PutBucketAclInput>,
) -> S3Result<S3Response<PutBucketAclOutput>> {
    let input = req.input;
    let bucket = face.blobs.bucket(&input.bucket).or_s3()?;
    check_bucket_acl(input.acl.as_ref())?;
    check_grants(input.access_control_policy.as_ref(), &bucket.owner)?;
    Ok(S3Response::new(PutBucketAclOutput {}))
}

/// As [`get_bucket_acl`], of an object.
pub async fn get_object_acl(
    face: &Face,
    req: S3Request<GetObjectAclInput>,
) -> S3Result<S3Response<GetObjectAclOutput>> {
    let input = req.input;
    crate::objects::visible(face, &input.bucket, &input.key, input.version_id.as_deref())?;
    let user = face.blobs.bucket(&input.bucket).or_s3()?.owner;
    let (grants, owner) = (private(&user), Some(owner(&user)));
    Ok(S3Response::new(GetObjectAclOutput { grants, owner, ..Default::default() }))
}

/// As [`put_bucket_acl`], of an object.
pub async fn put_object_acl(
    face: &Face,
    req: S3Request<PutObjectAclInput>,
) -> S3Result<S3Response<PutObjectAclOutput>> {
    let input = req.input;
    crate::objects::visible(face, &input.bucket, &input.key, input.version_id.as_deref())?;
    check_object_acl(input.acl.as_ref())?;
    let owner = face.blobs.bucket(&input.bucket).or_s3()?.owner;
    check_grants(input.access_control_policy.as_ref(), &owner)?;
    Ok(S3Response::new(PutObjectAclOutput::default()))
}

/// The policy as it was put.
pub async fn get_bucket_policy(
    face: &Face,
    req: S3Request<GetBucketPolicyInput>,
) -> S3Result<S3Response<GetBucketPolicyOutput>> {
    let bucket = face.blobs.bucket(&req.input.bucket).or_s3()?;
    match bucket.document(POLICY) {
        Some(text) => Ok(S3Response::new(GetBucketPolicyOutput { policy: Some(text.to_owned()) })),
        None => Err(s3_error!(NoSuchBucketPolicy, "the bucket has no policy")),
    }
}

/// Whether the policy gives access to strangers.
pub async fn get_bucket_policy_status(
    face: &Face,
    req: S3Request<GetBucketPolicyStatusInput>,
) -> S3Result<S3Response<GetBucketPolicyStatusOutput>> {
    let bucket = face.blobs.bucket(&req.input.bucket).or_s3()?;
    let Some(text) = bucket.document(POLICY) else {
        return Err(s3_error!(NoSuchBucketPolicy, "the bucket has no policy"));
    };
    let is_public = Parsed::parse(text, &req.input.bucket).is_ok_and(|policy| policy.is_public());
    let policy_status = Some(PolicyStatus { is_public: Some(is_public) });
    Ok(S3Response::new(GetBucketPolicyStatusOutput { policy_status }))
}

/// Keeps a policy that is understood whole.
pub async fn put_bucket_policy(
    face: &Face,
    req: S3Request<PutBucketPolicyInput>,
) -> S3Result<S3Response<PutBucketPolicyOutput>> {
    let input = req.input;
    let parsed = Parsed::parse(&input.policy, &input.bucket)
        .map_err(|why| s3_error!(MalformedPolicy, "the policy cannot be obeyed: {why}"))?;
    let blocked = blocked(&face.blobs.bucket(&input.bucket).or_s3()?);
    if blocked.block_public_policy == Some(true) && parsed.is_public() {
        return Err(s3_error!(AccessDenied, "the bucket's public access block refuses the policy"));
    }
    face.blobs.set_document(&input.bucket, POLICY, Some(input.policy)).await.or_s3()?;
    Ok(S3Response::new(PutBucketPolicyOutput {}))
}

/// Leaves the bucket to its owner again.
pub async fn delete_bucket_policy(
    face: &Face,
    req: S3Request<DeleteBucketPolicyInput>,
) -> S3Result<S3Response<DeleteBucketPolicyOutput>> {
    face.blobs.set_document(&req.input.bucket, POLICY, None).await.or_s3()?;
    Ok(S3Response::new(DeleteBucketPolicyOutput {}))
}

/// What the bucket does not let be given to strangers.
pub async fn get_public_access_block(
    face: &Face,
    req: S3Request<GetPublicAccessBlockInput>,
) -> S3Result<S3Response<GetPublicAccessBlockOutput>> {
    let said = document(face, &req.input.bucket, PUBLIC_ACCESS)?;
    let said = said.ok_or_else(|| {
        let code = S3ErrorCode::Custom("NoSuchPublicAccessBlockConfiguration".into());
        let mut e = S3Error::with_message(code, "the bucket has no public access block");
        e.set_status_code(StatusCode::NOT_FOUND);
        e
    })?;
    let public_access_block_configuration = Some(said);
    Ok(S3Response::new(GetPublicAccessBlockOutput { public_access_block_configuration }))
}

/// Says what must not be given to strangers, by whatever policy.
pub async fn put_public_access_block(
    face: &Face,
    req: S3Request<PutPublicAccessBlockInput>,
) -> S3Result<S3Response<PutPublicAccessBlockOutput>> {
    let input = req.input;
    let said = input.public_access_block_configuration;
    // What is not said is false.
    let whole = PublicAccessBlockConfiguration {
        block_public_acls: Some(said.block_public_acls == Some(true)),
        block_public_policy: Some(said.block_public_policy == Some(true)),
        ignore_public_acls: Some(said.ignore_public_acls == Some(true)),
        restrict_public_buckets: Some(said.restrict_public_buckets == Some(true)),
    };
    set_document(face, &input.bucket, PUBLIC_ACCESS, Some(&whole)).await?;
    Ok(S3Response::new(PutPublicAccessBlockOutput {}))
}

/// Blocks nothing any more.
pub async fn delete_public_access_block(
    face: &Face,
    req: S3Request<DeletePublicAccessBlockInput>,
) -> S3Result<S3Response<DeletePublicAccessBlockOutput>> {
    set_document::<()>(face, &req.input.bucket, PUBLIC_ACCESS, None).await?;
    Ok(S3Response::new(DeletePublicAccessBlockOutput {}))
}

/// The rules as they were put.
pub async fn get_bucket_cors(
    face: &Face,
    req: S3Request<GetBucketCorsInput>,
) -> S3Result<S3Response<GetBucketCorsOutput>> {
    let rules: Option<CORSRules> = document(face, &req.input.bucket, CORS)?;
    match rules {
        Some(rules) => Ok(S3Response::new(GetBucketCorsOutput { cors_rules: Some(rules) })),
        None => Err(s3_error!(NoSuchCORSConfiguration, "the bucket has no CORS rules")),
    }
}

/// Keeps rules by which browsers let pages of other sites ask.
pub async fn put_bucket_cors(
    face: &Face,
    req: S3Request<PutBucketCorsInput>,
) -> S3Result<S3Response<PutBucketCorsOutput>> {
    const METHODS: [&str; 5] = ["GET", "PUT", "POST", "DELETE", "HEAD"];
    const RULES_MAX: usize = 100;
    let input = req.input;
    let rules = input.cors_configuration.cors_rules;
    if rules.is_empty() || rules.len() > RULES_MAX {
        return Err(s3_error!(MalformedXML, "give 1 to {RULES_MAX} rules"));
    }
    for rule in &rules {
        if let Some(other) = rule.allowed_methods.iter().find(|m| !METHODS.contains(&m.as_str())) {
            return Err(s3_error!(InvalidRequest, "`{other}` is no method of CORS here"));
        }
        if rule.allowed_methods.is_empty() || rule.allowed_origins.is_empty() {
            return Err(s3_error!(MalformedXML, "a rule has methods and origins"));
        }
    }
    set_document(face, &input.bucket, CORS, Some(&rules)).await?;
    Ok(S3Response::new(PutBucketCorsOutput {}))
}

/// Lets no page of another site ask any more.
pub async fn delete_bucket_cors(
    face: &Face,
    req: S3Request<DeleteBucketCorsInput>,
) -> S3Result<S3Response<DeleteBucketCorsOutput>> {
    set_document::<()>(face, &req.input.bucket, CORS, None).await?;
    Ok(S3Response::new(DeleteBucketCorsOutput {}))
}

/// The rules as they were put.
pub async fn get_bucket_lifecycle_configuration(
    face: &Face,
    req: S3Request<GetBucketLifecycleConfigurationInput>,
) -> S3Result<S3Response<GetBucketLifecycleConfigurationOutput>> {
    let rules: Option<LifecycleRules> = document(face, &req.input.bucket, LIFECYCLE)?;
    match rules {
        Some(rules) => Ok(S3Response::new(GetBucketLifecycleConfigurationOutput {
            rules: Some(rules),
            ..Default::default()
        })),
        None => Err(s3_error!(NoSuchLifecycleConfiguration, "the bucket has no lifecycle rules")),
    }
}

/// Keeps rules by which objects expire; what cannot be carried out is refused.
pub async fn put_bucket_lifecycle_configuration(
    face: &Face,
    req: S3Request<PutBucketLifecycleConfigurationInput>,
) -> S3Result<S3Response<PutBucketLifecycleConfigurationOutput>> {
    let input = req.input;
    let mut rules = input.lifecycle_configuration.map(|c| c.rules).unwrap_or_default();
    crate::lifecycle::check(&mut rules)?;
    set_document(face, &input.bucket, LIFECYCLE, Some(&rules)).await?;
    Ok(S3Response::new(PutBucketLifecycleConfigurationOutput::default()))
}

/// Lets nothing expire any more.
pub async fn delete_bucket_lifecycle(
    face: &Face,
    req: S3Request<DeleteBucketLifecycleInput>,
) -> S3Result<S3Response<DeleteBucketLifecycleOutput>> {
    set_document::<()>(face, &req.input.bucket, LIFECYCLE, None).await?;
    Ok(S3Response::new(DeleteBucketLifecycleOutput {}))
}
