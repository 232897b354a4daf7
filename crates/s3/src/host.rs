//! Buckets as host names: `BUCKET.DOMAIN/KEY` beside `DOMAIN/BUCKET/KEY`. Any other host, an address
//! as a rule, is asked by paths. What is signed stays as the client wrote it.

use holdfast_base::{Error, Result};
use hyper::header::HOST;
use hyper::{HeaderMap, Uri};
use s3s::host::{S3Host, VirtualHost};
use s3s::{S3Result, s3_error};

/// The domain below which buckets are host names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain(String);

impl Domain {
    /// `Invalid` for what is no name: an address, or one with a port.
    pub fn new(text: &str) -> Result<Domain> {
        let name = text.trim_end_matches('.').to_ascii_lowercase();
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let is_label = |label: &str| !label.is_empty() && label.bytes().all(is_letter);
        // The last label of an address is a number.
        let is_name = name.rsplit('.').next().is_some_and(|last| last.parse::<u64>().is_err());
        if is_name && name.split('.').all(is_label) {
            return Ok(Domain(name));
        }
        Err(Error::invalid(format!(
            "use the domain `{text}`: give a name as s3.example.org, without a port"
        )))
    }

    /// The bucket that a `Host` header names, which may have a port, a dot behind it and letters of
    /// any case.
    pub fn bucket(&self, host: &str) -> Option<String> {
        let host = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let bucket = host.strip_suffix(&self.0)?.strip_suffix('.')?;
        (!bucket.is_empty()).then(|| bucket.to_owned())
    }

    /// Where a request leads with its bucket in the path, if the bucket is in the host. Fails if that
    /// would be longer than a URI may be.
    pub fn place(&self, uri: &Uri, headers: &HeaderMap) -> S3Result<Option<Uri>> {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let Some(bucket) = self.bucket(host) else { return Ok(None) };
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        let place = format!("/{bucket}{target}").parse();
        place.map(Some).map_err(|_| s3_error!(InvalidURI, "Couldn't parse the specified URI."))
    }
}

impl S3Host for Domain {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        let found = VirtualHost::new(self.0.as_str());
        Ok(match self.bucket(host) {
            Some(bucket) => found.with_bucket(bucket),
            None => found,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn a_bucket_is_what_stands_before_the_domain() {
        let domain = Domain::new("S3.Example.org.").unwrap();
        for (host, bucket) in [
            ("photos.s3.example.org", Some("photos")),
            ("photos.s3.example.org:9000", Some("photos")),
            ("PHOTOS.S3.example.ORG", Some("photos")),
            ("photos.s3.example.org.", Some("photos")),
            ("a.b.s3.example.org", Some("a.b")),
            ("s3.example.org", None),
            ("s3.example.org:9000", None),
            (".s3.example.org", None),
            ("photoss3.example.org", None),
            ("photos.s3.example.org.evil.org", None),
            ("127.0.0.1:9000", None),
            ("[::1]:9000", None),
            ("", None),
        ] {
            assert_eq!(domain.bucket(host).as_deref(), bucket, "{host}");
            let parsed = domain.parse_host_header(host).unwrap();
            assert_eq!(parsed.bucket(), bucket, "{host}");
        }
    }

    #[test]
    fn the_place_has_the_bucket_in_its_path() {
        let domain = Domain::new("s3.test").unwrap();
        let place = |host: &'static str, target: &str| {
            let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static(host))]);
            let uri: Uri = target.parse().unwrap();
            domain.place(&uri, &headers).map(|place| place.map(|place| place.to_string()))
        };
        let found = |place: &str| Some(place.to_owned());
        assert_eq!(place("b.s3.test", "/n/k?a=b").unwrap(), found("/b/n/k?a=b"));
        assert_eq!(place("b.s3.test:9000", "/?cors").unwrap(), found("/b/?cors"));
        assert_eq!(place("s3.test", "/b/k").unwrap(), None);
        let long = format!("/{}", "k".repeat(65_530));
        assert!(place("bucket.s3.test", &long).is_err());
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in ["10.0.0.1", "s3.test:9000", "", ".", "a..b", "*.s3.test", "[::1]"] {
            assert!(Domain::new(text).is_err(), "{text}");
        }
    }
}
