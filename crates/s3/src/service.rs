//! The operations of S3, each handed to the module that knows its matter. One that is not in the
//! list below is refused as NotImplemented, by its name.

use crate::access::{Access, Caller};
use crate::hot::Hot;
use crate::photos::Scalers;
use crate::{buckets, copy, listing, locks, multipart, objects, settings, tags};
use holdfast_blob::Blobs;
use holdfast_env::Budget;
use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result};
use std::sync::Arc;

/// What all operations share.
#[derive(Clone)]
pub struct Face {
    /// Buckets, keys and their bytes.
    pub blobs: Arc<Blobs>,
    /// Who may do what.
    pub access: Arc<Access>,
    /// Memory for bodies on their way in or out.
    pub budget: Arc<Budget>,
    /// Threads that scale photos.
    pub scalers: Arc<Scalers>,
    /// Objects asked for lately.
    pub hot: Arc<Hot>,
}

/// Who signed, as access control has noted it; nobody where it has not.
pub fn caller<T>(req: &S3Request<T>) -> Caller {
    req.extensions.get::<Caller>().cloned().unwrap_or_default()
}

macro_rules! operations {
    ($($name:ident: $input:ident => $output:ident = $module:ident;)*) => {
        #[async_trait::async_trait]
        impl S3 for Face {
            $(
                async fn $name(&self, req: S3Request<$input>) -> S3Result<S3Response<$output>> {
                    $module::$name(self, req).await
                }
            )*
        }

        /// What a test holds against the list in docs/s3.md.
        #[cfg(test)]
        const SUPPORTED: &[&str] = &[$(stringify!($name)),*];
    };
}

operations! {
    abort_multipart_upload: AbortMultipartUploadInput => AbortMultipartUploadOutput = multipart;
    complete_multipart_upload: CompleteMultipartUploadInput => CompleteMultipartUploadOutput = multipart;
    copy_object: CopyObjectInput => CopyObjectOutput = copy;
    create_bucket: CreateBucketInput => CreateBucketOutput = buckets;
    create_multipart_upload: CreateMultipartUploadInput => CreateMultipartUploadOutput = multipart;
    delete_bucket: DeleteBucketInput => DeleteBucketOutput = buckets;
    delete_bucket_cors: DeleteBucketCorsInput => DeleteBucketCorsOutput = settings;
    delete_bucket_lifecycle: DeleteBucketLifecycleInput => DeleteBucketLifecycleOutput = settings;
    delete_bucket_policy: DeleteBucketPolicyInput => DeleteBucketPolicyOutput = settings;
    delete_bucket_tagging: DeleteBucketTaggingInput => DeleteBucketTaggingOutput = tags;
    delete_object: DeleteObjectInput => DeleteObjectOutput = objects;
    delete_object_tagging: DeleteObjectTaggingInput => DeleteObjectTaggingOutput = tags;
    delete_objects: DeleteObjectsInput => DeleteObjectsOutput = objects;
    delete_public_access_block: DeletePublicAccessBlockInput => DeletePublicAccessBlockOutput = settings;
    get_bucket_acl: GetBucketAclInput => GetBucketAclOutput = settings;
    get_bucket_cors: GetBucketCorsInput => GetBucketCorsOutput = settings;
    get_bucket_lifecycle_configuration: GetBucketLifecycleConfigurationInput => GetBucketLifecycleConfigurationOutput = settings;
    get_bucket_location: GetBucketLocationInput => GetBucketLocationOutput = buckets;
    get_bucket_policy: GetBucketPolicyInput => GetBucketPolicyOutput = settings;
    get_bucket_policy_status: GetBucketPolicyStatusInput => GetBucketPolicyStatusOutput = settings;
    get_bucket_tagging: GetBucketTaggingInput => GetBucketTaggingOutput = tags;
    get_bucket_versioning: GetBucketVersioningInput => GetBucketVersioningOutput = buckets;
    get_object: GetObjectInput => GetObjectOutput = objects;
    get_object_acl: GetObjectAclInput => GetObjectAclOutput = settings;
    get_object_attributes: GetObjectAttributesInput => GetObjectAttributesOutput = objects;
    get_object_legal_hold: GetObjectLegalHoldInput => GetObjectLegalHoldOutput = locks;
    get_object_lock_configuration: GetObjectLockConfigurationInput => GetObjectLockConfigurationOutput = locks;
    get_object_retention: GetObjectRetentionInput => GetObjectRetentionOutput = locks;
    get_object_tagging: GetObjectTaggingInput => GetObjectTaggingOutput = tags;
    get_public_access_block: GetPublicAccessBlockInput => GetPublicAccessBlockOutput = settings;
    head_bucket: HeadBucketInput => HeadBucketOutput = buckets;
    head_object: HeadObjectInput => HeadObjectOutput = objects;
    list_buckets: ListBucketsInput => ListBucketsOutput = buckets;
    list_multipart_uploads: ListMultipartUploadsInput => ListMultipartUploadsOutput = multipart;
    list_object_versions: ListObjectVersionsInput => ListObjectVersionsOutput = listing;
    list_objects: ListObjectsInput => ListObjectsOutput = listing;
    list_objects_v2: ListObjectsV2Input => ListObjectsV2Output = listing;
    list_parts: ListPartsInput => ListPartsOutput = multipart;
    put_bucket_acl: PutBucketAclInput => PutBucketAclOutput = settings;
    put_bucket_cors: PutBucketCorsInput => PutBucketCorsOutput = settings;
    put_bucket_lifecycle_configuration: PutBucketLifecycleConfigurationInput => PutBucketLifecycleConfigurationOutput = settings;
    put_bucket_policy: PutBucketPolicyInput => PutBucketPolicyOutput = settings;
    put_bucket_tagging: PutBucketTaggingInput => PutBucketTaggingOutput = tags;
    put_bucket_versioning: PutBucketVersioningInput => PutBucketVersioningOutput = buckets;
    put_object: PutObjectInput => PutObjectOutput = objects;
    put_object_acl: PutObjectAclInput => PutObjectAclOutput = settings;
    put_object_legal_hold: PutObjectLegalHoldInput => PutObjectLegalHoldOutput = locks;
    put_object_lock_configuration: PutObjectLockConfigurationInput => PutObjectLockConfigurationOutput = locks;
    put_object_retention: PutObjectRetentionInput => PutObjectRetentionOutput = locks;
    put_object_tagging: PutObjectTaggingInput => PutObjectTaggingOutput = tags;
    put_public_access_block: PutPublicAccessBlockInput => PutPublicAccessBlockOutput = settings;
    upload_part: UploadPartInput => UploadPartOutput = multipart;
    upload_part_copy: UploadPartCopyInput => UploadPartCopyOutput = copy;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `list_objects_v2` in S3's spelling: `ListObjectsV2`.
    fn title(name: &str) -> String {
        let word = |word: &str| word[..1].to_ascii_uppercase() + &word[1..];
        name.split('_').map(word).collect()
    }

    #[test]
    fn the_page_lists_every_operation_that_is_here_and_no_other() {
        let page = include_str!("../../../docs/s3.md");
        let (_, table) = page.split_once("## Operations").unwrap();
        let (table, missing) = table.split_once("NotImplemented").unwrap();
        let mut listed: Vec<&str> = table
            .lines()
            .filter_map(|line| line.strip_prefix("| ")?.split(" | yes").next())
            .collect();
        listed.retain(|name| *name != "operation | here |" && *name != "PostObject");
        let mut here: Vec<String> = SUPPORTED.iter().map(|name| title(name)).collect();
        here.sort();
        listed.sort();
        assert_eq!(listed, here);
        for name in &here {
            let absent = missing.split([',', ' ', ';']).any(|word| word == name);
            assert!(!absent, "{name} is here and is listed as missing");
        }
    }
}
