//! Many connections with one request at a time each, freshly signed; every body that comes back is
//! compared with what was put.

use super::{BUCKET, BlobBench, PHOTOS, Target};
use crate::process::own_cpu_seconds;
use crate::report::Sample;
use holdfast_base::checksum::crc32c;
use holdfast_base::{Error, Result};
use holdfast_env::HoldMutex;
use holdfast_s3::{Client, REGION, Request, Response};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

/// One kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of every object once, in the order of their numbers.
    Put,
    /// By name, in an order that is far from that of the puts.
    Get,
    /// By pointer.
    Native,
    /// A page of at most [`LISTED`] keys.
    List,
    /// A get nine times of ten, else a put of what is there.
    Mixed,
    /// So many objects in one request, as an archive, under names of their own.
    Batch(u64),
    /// The same under the names of single puts: what is there before anything is measured.
    Fill(u64),
    /// Every third object.
    Delete,
    /// As people look at photos: one put in ten, gets of what is new more than of what is old, and
    /// every fourth of them by a delivery network.
    Lately,
    /// Of one photo, each time under another name, in a bucket that keeps several sizes.
    Photo,
}

/// Keys of one listing.
const LISTED: u64 = 1000;
/// A prime: steps of it visit every object, far from the one before.
const STEP: u64 = 0x9e37_79b1;

/// An object's bytes: of its number and nothing else, so that a get can be checked.
fn body(number: u64, bytes: usize) -> Vec<u8> {
    let mut body = Vec::with_capacity(bytes + 8);
    let mut x = number;
    while body.len() < bytes {
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        body.extend_from_slice(&(z ^ (z >> 27)).to_le_bytes());
    }
    body.truncate(bytes);
    body
}

fn name(bytes: usize, number: u64) -> String {
    format!("{bytes}/{:03}/{number:08}", number % 1000)
}

/// A load of one kind and size.
pub struct Load<'a> {
    /// Whom the requests go to.
    pub target: &'a Target,
    /// How many connections and objects.
    pub options: &'a BlobBench,
    /// What is asked for.
    pub kind: Kind,
    /// Of one object.
    pub bytes: usize,
    /// Requests, over all connections.
    pub operations: u64,
    /// Pointers of the objects, as puts and heads said them; for gets by pointer.
    pub pointers: &'a [OnceLock<String>],
    /// Checksums of the objects, for gets.
    pub expected: &'a [u32],
    /// A JPEG, for puts of photos.
    pub photo: &'a [u8],
}

/// Checksums of so many objects, made before anything is measured.
pub fn checksums(objects: u64, bytes: usize) -> Vec<u32> {
    (0..objects).map(|number| crc32c(&body(number, bytes))).collect()
}

impl Load<'_> {
    /// Runs it; operations are counted in objects.
    pub fn run(&self) -> Result<Sample> {
        let next = AtomicU64::new(0);
        let (cpu, own) = (self.target.cpu_seconds(), own_cpu_seconds());
        let latencies = Mutex::new(Vec::new());
        let start = Instant::now();
        std::thread::scope(|scope| {
            let connection = || -> Result<()> {
                let Target { credentials, authority, .. } = self.target;
                let mut client = Client::trusting(credentials, REGION, authority.as_deref())?;
                let mut own = Vec::new();
                loop {
                    let turn = next.fetch_add(1, Ordering::Relaxed);
                    if turn >= self.operations {
                        break;
                    }
                    own.push(self.request(&mut client, turn)?);
                }
                latencies.held().extend(own);
                Ok(())
            };
            let threads: Vec<_> =
                (0..self.options.clients).map(|_| scope.spawn(connection)).collect();
            threads.into_iter().try_for_each(|thread| {
                thread.join().map_err(|_| Error::bug("a measuring thread panicked"))?
            })
        })?;
        let time = start.elapsed();
        let cpu = (self.target.cpu_seconds() - cpu, own_cpu_seconds() - own);
        let objects = match self.kind {
            Kind::Batch(of) | Kind::Fill(of) => self.operations * of,
            _ => self.operations,
        };
        let moved = match self.kind {
            Kind::List | Kind::Delete => 0,
            Kind::Photo => objects * self.photo.len() as u64,
            _ => objects * self.bytes as u64,
        };
        let latencies = latencies.into_inner().expect("no holder of this lock panics");
        Ok(Sample::of_run(objects, moved, time, cpu, latencies))
    }

    /// One request, by its turn; answers its nanoseconds.
    fn request(&self, client: &mut Client, turn: u64) -> Result<u64> {
        let scattered = turn * STEP % self.options.objects;
        let start = match self.kind {
            Kind::Put => {
                let (start, put) = self.put(client, turn)?;
                if let Some(known) = self.pointers.get(turn as usize)
                    && let Some(pointer) = put.header("x-holdfast-pointer")
                {
                    let _ = known.set(pointer.to_owned());
                }
                start
            }
            Kind::Mixed if turn % 10 == 9 => self.put(client, scattered)?.0,
            Kind::Get | Kind::Mixed => {
                let get = Request::new("GET", self.path(scattered));
                self.get(client, &get, scattered)?
            }
            Kind::Native => {
                let pointer = self.pointers.get(scattered as usize).and_then(OnceLock::get);
                let pointer = pointer.ok_or_else(|| {
                    Error::unsupported("get by pointer: the service said no pointers")
                })?;
                self.get(client, &Request::new("GET", format!("/n/{pointer}")), scattered)?
            }
            Kind::List => {
                let request = Request::new("GET", format!("/{BUCKET}"))
                    .with("list-type", "2")
                    .with("prefix", format!("{}/{:03}/", self.bytes, turn % 1000))
                    .with("max-keys", LISTED.to_string());
                let start = Instant::now();
                client.send(&request)?.ok("list")?;
                start
            }
            Kind::Lately if turn.is_multiple_of(10) => {
                self.put(client, self.options.objects + turn / 10)?.0
            }
            Kind::Lately => self.get_lately(client, turn)?,
            Kind::Photo => {
                let path = format!("/{PHOTOS}/{turn:08}.jpg");
                let start = Instant::now();
                let put = Request { body: self.photo, ..Request::new("PUT", path) };
                client.send(&put)?.ok("put a photo")?;
                start
            }
            Kind::Delete => {
                let start = Instant::now();
                client.send(&Request::new("DELETE", self.path(3 * turn)))?.ok("delete")?;
                start
            }
            Kind::Batch(of) => {
                let numbers = turn * of..(turn + 1) * of;
                put_archive(client, &archive(numbers, self.bytes, "batch/")?)?
            }
            Kind::Fill(of) => {
                let numbers = turn * of..((turn + 1) * of).min(self.options.objects);
                put_archive(client, &archive(numbers, self.bytes, "")?)?
            }
        };
        Ok(start.elapsed().as_nanos() as u64)
    }

    fn path(&self, number: u64) -> String {
        format!("/{BUCKET}/{}", name(self.bytes, number))
    }

    /// Puts an object; answers when that began, its bytes being made by then.
    fn put(&self, client: &mut Client, number: u64) -> Result<(Instant, Response)> {
        let data = body(number, self.bytes);
        let start = Instant::now();
        let put = Request { body: &data, ..Request::new("PUT", self.path(number)) };
        Ok((start, client.send(&put)?.ok("put")?))
    }

    /// Gets an object of those that were there from the start, and checks it.
    fn get(&self, client: &mut Client, get: &Request<'_>, number: u64) -> Result<Instant> {
        let start = Instant::now();
        let got = client.send(get)?.ok("get")?;
        check(number, &got.body, self.expected[number as usize])?;
        client.recycle(got.body);
        Ok(start)
    }

    /// Gets an object as people look at photos: the newer, the likelier; one in four through a
    /// network that delivers them.
    fn get_lately(&self, client: &mut Client, turn: u64) -> Result<Instant> {
        // Those that are being put are left out.
        let newest =
            self.options.objects + (turn / 10).saturating_sub(2 * self.options.clients as u64);
        let chance = (turn * STEP % 1_000_003) as f64 / 1_000_003.0;
        let age = (newest as f64).powf(chance) as u64;
        let number = newest.saturating_sub(age.max(1));
        let expected = crc32c(&body(number, self.bytes));
        let mut get = Request::new("GET", self.path(number));
        if turn % 4 == 1 {
            get.headers.push(("cdn-loop", "cdn.example".to_owned()));
        }
        let start = Instant::now();
        let got = client.send(&get)?.ok("get")?;
        check(number, &got.body, expected)?;
        Ok(start)
    }
}

/// Puts an archive that becomes one object a file; answers when that began.
fn put_archive(client: &mut Client, archive: &[u8]) -> Result<Instant> {
    let put = Request::new("PUT", format!("/{BUCKET}/archive"));
    let mut put = Request { body: archive, ..put };
    put.headers.push(("x-amz-meta-snowball-auto-extract", "true".to_owned()));
    let start = Instant::now();
    client.send(&put)?.ok("put an archive")?;
    Ok(start)
}

fn check(number: u64, got: &[u8], expected: u32) -> Result<()> {
    match crc32c(got) == expected {
        true => Ok(()),
        false => Err(Error::corrupt(format!("get object {number}: other bytes came back"))),
    }
}

/// A photo of a camera's size: soft shapes, and the grain of its sensor.
pub fn photo(width: u32, height: u32) -> Result<Vec<u8>> {
    let mut grain = 1u64;
    let pixel = |x: u32, y: u32| {
        grain = grain.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let noise = (grain >> 60) as f32;
        let (x, y) = (x as f32 / width as f32, y as f32 / height as f32);
        let wave = |a: f32, b: f32| 110.0 + 90.0 * (a * x + b * y).sin() + noise;
        image::Rgb([wave(9.0, 4.0) as u8, wave(-5.0, 12.0) as u8, wave(3.0, -7.0) as u8])
    };
    let picture = image::RgbImage::from_fn(width, height, pixel);
    let mut bytes = Vec::new();
    let encoder = image::codecs::jpeg::JpegEncoder::new_with_quality(&mut bytes, 90);
    let encoded = picture.write_with_encoder(encoder);
    encoded.map_err(|e| Error::bug(format!("make a photo: {e}")))?;
    Ok(bytes)
}

fn archive(numbers: std::ops::Range<u64>, bytes: usize, below: &str) -> Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    for number in numbers {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes as u64);
        header.set_mode(0o644);
        let name = format!("{below}{}", name(bytes, number));
        builder.append_data(&mut header, name, body(number, bytes).as_slice())?;
    }
    Ok(builder.into_inner()?)
}
