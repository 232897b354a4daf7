//! Photo buckets, archives that become objects, and the cache of what was written lately.

use super::common::{Node, Scratch};
use super::s3::{blob, credentials, start};
use holdfast_env::RealClock;
use holdfast_s3::{Client, Endpoint, REGION, Request, Response, Signer, element};
use image::codecs::jpeg::JpegEncoder;
use image::{Rgb, RgbImage};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

const SIZES: [u32; 4] = [2048, 720, 180, 75];

pub fn client(data: &Path) -> Client {
    let (endpoint, access_key, secret_key) = credentials(data);
    let signer = Signer { access_key, secret_key, region: REGION.to_owned() };
    Client::new(Endpoint::parse(&endpoint).unwrap(), signer, Arc::new(RealClock::new())).unwrap()
}

/// A camera's picture of something that is not all one colour.
fn jpeg(width: u32, height: u32) -> Vec<u8> {
    let colour = |x: u32, y: u32| Rgb([(x % 256) as u8, (y % 256) as u8, ((x * y) % 251) as u8]);
    let mut bytes = Vec::new();
    let mut encoder = JpegEncoder::new_with_quality(&mut bytes, 90);
    encoder.encode_image(&RgbImage::from_fn(width, height, colour)).unwrap();
    bytes
}

pub fn send(client: &mut Client, request: Request<'_>) -> Response {
    let what = format!("{} {}", request.method, request.path);
    client.send(&request).unwrap().ok(what).unwrap()
}

pub fn put(client: &mut Client, path: &str, body: &[u8]) -> Response {
    send(client, Request { body, ..Request::new("PUT", path) })
}

fn sized(client: &mut Client, path: &str, size: u32) -> Response {
    send(client, Request::new("GET", path).with("size", size.to_string()))
}

/// Longest sides of the pictures that a photo is kept in, and their bytes.
fn pictures(client: &mut Client, path: &str) -> Vec<(u32, Vec<u8>)> {
    let one = |size| {
        let got = sized(client, path, size);
        assert_eq!(got.header("content-type"), Some("image/jpeg"));
        let picture = image::load_from_memory(&got.body).unwrap();
        (picture.width().max(picture.height()), got.body)
    };
    SIZES.into_iter().map(one).collect()
}

fn photo_bucket(node: &Node, bucket: &str) {
    blob(&node.data, &["mb", bucket], b"").ok();
    let set = blob(&node.data, &["photos", bucket, "--sizes", "2048,720,180,75"], b"").ok();
    assert!(set.contains("2048,720,180,75"), "{set}");
}

#[test]
fn a_photo_is_served_in_four_sizes_also_after_its_names_were_lost() {
    let scratch = Scratch::new();
    let node = start(&scratch.path("data"));
    let data = node.data.clone();
    photo_bucket(&node, "photos");
    let original = jpeg(2400, 1600);
    let mut s3 = client(&data);
    put(&mut s3, "/photos/summer/1.jpg", &original);
    assert_eq!(send(&mut s3, Request::new("GET", "/photos/summer/1.jpg")).body, original);
    let made = pictures(&mut s3, "/photos/summer/1.jpg");
    let sides: Vec<u32> = made.iter().map(|(side, _)| *side).collect();
    assert_eq!(sides, SIZES);
    // Each picture is a needle of its own, got by its pointer, too.
    let pointer = sized(&mut s3, "/photos/summer/1.jpg", 180);
    let pointer = pointer.header("x-holdfast-pointer").unwrap().to_owned();
    let native = send(&mut s3, Request::new("GET", format!("/n/{pointer}")));
    assert_eq!(native.header("content-type"), Some("image/jpeg"));
    assert_eq!(native.body, made[2].1);
    // A range of a picture, and a size that is none.
    let mut part = Request::new("GET", "/photos/summer/1.jpg").with("size", "75");
    part.headers.push(("range", "bytes=2-9".to_owned()));
    assert_eq!(send(&mut s3, part).body, made[3].1[2..10]);
    let none = s3.send(&Request::new("GET", "/photos/summer/1.jpg").with("size", "100")).unwrap();
    assert_eq!(none.status, 400);
    assert!(none.text().contains("2048, 720, 180, 75"), "{}", none.text());
    // Overwritten and deleted photos leave garbage of five needles; compaction moves the others.
    put(&mut s3, "/photos/gone.jpg", &jpeg(300, 200));
    send(&mut s3, Request::new("DELETE", "/photos/gone.jpg"));
    let file = scratch.path("back");
    let size = ["get", "photos/summer/1.jpg", file.to_str().unwrap(), "--size", "720"];
    blob(&data, &size, b"").ok();
    assert_eq!(std::fs::read(&file).unwrap(), made[1].1);
    drop(s3);
    // The log's topic and the rows are lost: the needles alone say what there was.
    node.stop();
    for lost in ["blobs", "log/topics/blobs+0"] {
        std::fs::remove_dir_all(data.join(lost)).unwrap();
    }
    // And somebody says that the node goes on without them.
    std::fs::remove_file(data.join("REACHED")).unwrap();
    let node = start(&data);
    let rebuilt: Value = serde_json::from_str(&blob(&data, &["rebuild-index"], b"").ok()).unwrap();
    assert_eq!(rebuilt["refused"].as_array().map(Vec::len), Some(0), "{rebuilt}");
    let mut s3 = client(&data);
    assert_eq!(send(&mut s3, Request::new("GET", "/photos/summer/1.jpg")).body, original);
    assert_eq!(pictures(&mut s3, "/photos/summer/1.jpg"), made);
    let verified: Value = serde_json::from_str(&blob(&data, &["verify"], b"").ok()).unwrap();
    assert_eq!(verified["damaged"].as_array().map(Vec::len), Some(0), "{verified}");
    drop(s3);
    node.stop();
}

#[test]
fn what_is_no_photo_is_refused_and_nothing_of_it_is_kept() {
    let scratch = Scratch::new();
    let node = start(&scratch.path("data"));
    photo_bucket(&node, "photos");
    let mut s3 = client(&node.data);
    let whole = jpeg(64, 64);
    for (body, why) in [(&b"no photo"[..], "no JPEG"), (&whole[..whole.len() / 3], "decoded")] {
        let refused = s3.send(&Request { body, ..Request::new("PUT", "/photos/a") }).unwrap();
        assert_eq!(refused.status, 400, "{}", refused.text());
        assert!(refused.text().contains(why), "{}", refused.text());
    }
    assert_eq!(s3.send(&Request::new("GET", "/photos/a")).unwrap().status, 404);
    let refused = blob(&node.data, &["photos", "photos", "--sizes", "720,99999"], b"");
    refused.refused(&["99999", "8192"]);
    // Switched off, the bucket takes everything.
    blob(&node.data, &["photos", "photos", "--off"], b"").ok();
    put(&mut s3, "/photos/a", b"no photo");
    drop(s3);
    node.stop();
}

#[test]
fn a_photo_that_comes_in_parts_or_is_copied_has_its_sizes() {
    let scratch = Scratch::new();
    let node = start(&scratch.path("data"));
    photo_bucket(&node, "photos");
    blob(&node.data, &["mb", "plain"], b"").ok();
    let mut s3 = client(&node.data);
    let photo = jpeg(3000, 3000);
    assert!(photo.len() > 5 << 20, "two parts, of which the first must have 5 MiB");
    let begun = send(&mut s3, Request::new("POST", "/photos/parts.jpg").with("uploads", ""));
    let id = element(&begun.text(), "UploadId").unwrap();
    let mut list = String::new();
    for (number, part) in [(1, &photo[..5 << 20]), (2, &photo[5 << 20..])] {
        let request = Request::new("PUT", "/photos/parts.jpg")
            .with("partNumber", number.to_string())
            .with("uploadId", id.clone());
        let etag = send(&mut s3, Request { body: part, ..request });
        let etag = etag.header("etag").unwrap();
        list.push_str(&format!(
            "<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
        ));
    }
    let list = format!("<CompleteMultipartUpload>{list}</CompleteMultipartUpload>");
    let complete = Request::new("POST", "/photos/parts.jpg").with("uploadId", id);
    send(&mut s3, Request { body: list.as_bytes(), ..complete });
    let made = pictures(&mut s3, "/photos/parts.jpg");
    put(&mut s3, "/plain/whole.jpg", &photo);
    let mut copy = Request::new("PUT", "/photos/copy.jpg");
    copy.headers.push(("x-amz-copy-source", "/plain/whole.jpg".to_owned()));
    send(&mut s3, copy);
    assert_eq!(pictures(&mut s3, "/photos/copy.jpg"), made);
    drop(s3);
    node.stop();
}

fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, data) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, *data).unwrap();
    }
    builder.into_inner().unwrap()
}

fn extract<'a>(path: &str, body: &'a [u8]) -> Request<'a> {
    let mut request = Request { body, ..Request::new("PUT", path) };
    request.headers.push(("x-amz-meta-snowball-auto-extract", "true".to_owned()));
    request
}

#[test]
fn an_archive_becomes_one_object_a_file() {
    let scratch = Scratch::new();
    let node = start(&scratch.path("data"));
    photo_bucket(&node, "photos");
    blob(&node.data, &["mb", "plain"], b"").ok();
    let mut s3 = client(&node.data);
    let large = vec![7; 9 << 20];
    let packed = archive(&[("a", b"one"), ("b/empty", b""), ("b/large", &large), ("b/c", b"two")]);
    let mut request = extract("/plain/batch.tar", &packed);
    request.headers.push(("x-amz-meta-minio-snowball-prefix", "in/".to_owned()));
    send(&mut s3, request);
    let keys = ["in/a", "in/b/empty", "in/b/large", "in/b/c"];
    for (key, data) in keys.into_iter().zip([&b"one"[..], b"", &large, b"two"]) {
        let got = send(&mut s3, Request::new("GET", format!("/plain/{key}")));
        assert_eq!(got.body, data, "{key}");
        assert!(got.header("x-amz-meta-snowball-auto-extract").is_none());
    }
    assert_eq!(s3.send(&Request::new("GET", "/plain/batch.tar")).unwrap().status, 404);
    // One of the files is no photo: the others are kept, and the answer says which was not.
    let packed = archive(&[("1.jpg", &jpeg(300, 200)), ("2.jpg", b"?"), ("3.jpg", &jpeg(90, 80))]);
    let refused = s3.send(&extract("/photos/x.tar", &packed)).unwrap();
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("2.jpg"), "{}", refused.text());
    assert_eq!(sized(&mut s3, "/photos/1.jpg", 75).status, 200);
    assert_eq!(sized(&mut s3, "/photos/3.jpg", 75).status, 200);
    // What is no archive, or breaks off.
    for bad in [&b"no archive".repeat(100)[..], &packed[..packed.len() / 2]] {
        let refused = s3.send(&extract("/plain/x", bad)).unwrap();
        assert_eq!(refused.status, 400, "{}", refused.text());
    }
    drop(s3);
    node.stop();
}

#[test]
fn what_people_look_at_is_in_memory_and_what_networks_fetch_is_not() {
    let scratch = Scratch::new();
    let node = start(&scratch.path("data"));
    blob(&node.data, &["mb", "box"], b"").ok();
    let mut s3 = client(&node.data);
    put(&mut s3, "/box/person", b"looked at");
    put(&mut s3, "/box/network", b"fetched");
    let get = |s3: &mut Client, path: &str, network: bool| {
        let mut request = Request::new("GET", path);
        if network {
            request.headers.push(("cdn-loop", "cdn.example".to_owned()));
        }
        send(s3, request).body
    };
    for _ in 0..3 {
        assert_eq!(get(&mut s3, "/box/person", false), b"looked at");
        assert_eq!(get(&mut s3, "/box/network", true), b"fetched");
    }
    let counts =
        || -> Value { serde_json::from_str(&blob(&node.data, &["cache"], b"").ok()).unwrap() };
    let now = counts();
    assert_eq!((now["hits"].as_u64(), now["admitted"].as_u64()), (Some(2), Some(1)), "{now}");
    // An overwritten object is another one.
    put(&mut s3, "/box/person", b"new");
    assert_eq!(get(&mut s3, "/box/person", false), b"new");
    assert_eq!(counts()["hits"], 2);
    drop(s3);
    node.stop();
}
