//! Signature Version 4. Pure: the time is handed in.

use super::Request;
use crate::listing::percent_encode;
use crate::signature::{ALGORITHM, Scope, signature};
use holdfast_base::text::utc;

/// A key pair and a region.
#[derive(Clone, Debug)]
pub struct Signer {
    /// Says who asks; goes with each request.
    pub access_key: String,
    /// Signs, and never leaves this process.
    pub secret_key: String,
    /// That the service believes to be in: a signature holds for one.
    pub region: String,
}

/// A request as it goes out.
pub struct Signed {
    /// Path and query, encoded.
    pub target: String,
    /// All headers to send, but for the body's length.
    pub headers: Vec<(String, String)>,
}

const UNRESERVED: &[u8] = b"-_.~";

/// `20261121T080000Z`, from milliseconds since 1970.
fn amz_date(unix_ms: u64) -> String {
    utc((unix_ms / 1000) as i64, 'T').replace(['-', ':'], "") + "Z"
}

impl Signer {
    /// Signs with the hash of the body, in hexadecimal or one of S3's words for a body that is not
    /// hashed.
    pub fn sign(
        &self,
        request: &Request<'_>,
        host: &str,
        payload_hash: &str,
        unix_ms: u64,
    ) -> Signed {
        let date = amz_date(unix_ms);
        let path = percent_encode(&request.path, b"-_.~/");
        let mut query: Vec<(String, String)> = request
            .query
            .iter()
            .map(|(name, value)| {
                (percent_encode(name, UNRESERVED), percent_encode(value, UNRESERVED))
            })
            .collect();
        query.sort();
        let query: Vec<String> = query.into_iter().map(|(n, v)| format!("{n}={v}")).collect();
        let query = query.join("&");
        let mut headers: Vec<(String, String)> =
            request.headers.iter().map(|(n, v)| (n.to_ascii_lowercase(), v.clone())).collect();
        headers.push(("host".into(), host.to_owned()));
        headers.push(("x-amz-content-sha256".into(), payload_hash.to_owned()));
        headers.push(("x-amz-date".into(), date.clone()));
        headers.sort();
        let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(";");
        let lines: String = headers.iter().map(|(n, v)| format!("{n}:{}\n", v.trim())).collect();
        let canonical =
            format!("{}\n{path}\n{query}\n{lines}\n{names}\n{payload_hash}", request.method);
        let scope = Scope { day: &date[..8], region: &self.region, service: "s3" };
        let signature = signature(&self.secret_key, &date, &scope, &canonical);
        let authorization = format!(
            "{ALGORITHM} Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
            self.access_key
        );
        headers.push(("authorization".into(), authorization));
        let target = if query.is_empty() { path } else { format!("{path}?{query}") };
        Signed { target, headers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentations_example_is_signed_as_it_says() {
        // "Example: GET Object" of S3's documentation of Signature Version 4.
        let signer = Signer {
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            region: "us-east-1".into(),
        };
        let mut request = Request::new("GET", "/test.txt");
        request.headers.push(("Range", "bytes=0-9".into()));
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let at_ms = 1_369_353_600_000;
        assert_eq!(amz_date(at_ms), "20130524T000000Z");
        let signed = signer.sign(&request, "examplebucket.s3.amazonaws.com", empty, at_ms);
        let authorization = &signed.headers.last().unwrap().1;
        assert!(
            authorization
                .ends_with("f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
            "{authorization}"
        );
    }

    #[test]
    fn dates_of_leap_years_and_ends_of_years_are_right() {
        for (seconds, text) in [
            (0, "19700101T000000Z"),
            (951_782_400, "20000229T000000Z"),
            (4_107_542_399, "21000228T235959Z"),
            (1_767_225_599, "20251231T235959Z"),
        ] {
            assert_eq!(amz_date(seconds * 1000), text);
        }
    }
}
