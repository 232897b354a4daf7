//! Photos in several sizes: which ones a bucket keeps, and the smaller pictures themselves. An upload
//! is decoded once; each picture is scaled from the next larger one and turned the way the camera was
//! held. Pure: bytes in, bytes out; whoever calls brings the thread, for it takes long.

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8x3, U8x4};
use fast_image_resize::{PixelTrait, Resizer};
use holdfast_blob::NewAlternate;
use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::PngEncoder;
use image::{DynamicImage, ImageDecoder, ImageEncoder, ImageFormat, ImageReader, Limits};
use std::io::Cursor;

/// Sizes of one bucket, and pixels of the longest side of each.
pub const SIZES_MAX: usize = 8;
pub const SIDE_MIN: u32 = 16;
pub const SIDE_MAX: u32 = 8192;
/// Of an upload that is to be scaled: it is in memory as a whole.
pub const PHOTO_BYTES_MAX: usize = 32 << 20;
/// Of a photo; it is decoded as a whole, in up to four bytes a pixel.
pub const PHOTO_PIXELS_MAX: u64 = 64_000_000;
const JPEG_QUALITY: u8 = 85;

/// A bucket's setting, in the order given; largest first is usual.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhotoSizes(Vec<u32>);

impl PhotoSizes {
    /// The document that a bucket's sizes are.
    pub const DOCUMENT: &str = "photos";

    /// `2048,720,180,75`.
    pub fn parse(text: &str) -> Result<PhotoSizes, String> {
        let mut sizes = Vec::new();
        for word in text.split(',') {
            let size = word.trim().parse().ok();
            let size =
                size.filter(|size| (SIDE_MIN..=SIDE_MAX).contains(size)).ok_or_else(|| {
                    format!("a size is {SIDE_MIN} to {SIDE_MAX} pixels, `{}` is not", word.trim())
                })?;
            if sizes.contains(&size) {
                return Err(format!("size {size} is given twice"));
            }
            sizes.push(size);
        }
        match sizes.len() {
            0..=SIZES_MAX => Ok(PhotoSizes(sizes)),
            given => Err(format!("a bucket has at most {SIZES_MAX} sizes, {given} were given")),
        }
    }
}

impl std::fmt::Display for PhotoSizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&words.join(","))
    }
}

/// The pictures of a photo (JPEG, PNG, GIF or WebP), one for each size: JPEG, or PNG for what is
/// transparent. A photo that is smaller than a size keeps its own. `etag` names a picture's bytes.
/// Fails with a sentence about the photo.
pub fn scale(
    photo: &[u8],
    sizes: &PhotoSizes,
    etag: &dyn Fn(&[u8]) -> String,
) -> Result<Vec<NewAlternate>, String> {
    if photo.len() > PHOTO_BYTES_MAX {
        return Err(format!("it has {} bytes, a photo at most {PHOTO_BYTES_MAX}", photo.len()));
    }
    let reader = ImageReader::new(Cursor::new(photo)).with_guessed_format();
    let mut reader = reader.map_err(|e| format!("it cannot be read: {e}"))?;
    match reader.format() {
        None => return Err("it is no JPEG, PNG, GIF or WebP".to_owned()),
        // Its decoder makes up what is missing.
        Some(ImageFormat::Jpeg) if !is_whole_jpeg(photo) => {
            return Err("it cannot be decoded: it breaks off before its end".to_owned());
        }
        Some(_) => {}
    }
    let mut limits = Limits::default();
    limits.max_alloc = Some(8 * PHOTO_PIXELS_MAX);
    reader.limits(limits);
    let broken = |e: image::ImageError| format!("it cannot be decoded: {e}");
    let mut decoder = reader.into_decoder().map_err(broken)?;
    let (width, height) = decoder.dimensions();
    if width as u64 * height as u64 > PHOTO_PIXELS_MAX {
        return Err(format!(
            "it has {width}x{height} pixels, a photo at most {PHOTO_PIXELS_MAX} in all"
        ));
    }
    let orientation = decoder.orientation().map_err(broken)?;
    let profile = decoder.icc_profile().map_err(broken)?;
    let decoded = DynamicImage::from_decoder(decoder).map_err(broken)?;
    let mut picture = match decoded.color().has_alpha() {
        true => DynamicImage::from(decoded.into_rgba8()),
        false => DynamicImage::from(decoded.into_rgb8()),
    };
    let mut largest_first = sizes.0.clone();
    largest_first.sort_unstable_by(|a, b| b.cmp(a));
    let mut turned = false;
    let mut made = Vec::new();
    for size in largest_first {
        if let Some(smaller) = fit(&picture, size)? {
            picture = smaller;
        }
        // A small picture is turned in no time.
        if !std::mem::replace(&mut turned, true) {
            picture.apply_orientation(orientation);
        }
        let (bytes, content_type) = encode(&picture, profile.as_deref())?;
        made.push(NewAlternate {
            size,
            width: picture.width(),
            height: picture.height(),
            content_type: content_type.to_owned(),
            etag: etag(&bytes),
            bytes,
        });
    }
    made.sort_by_key(|one| sizes.0.iter().position(|size| *size == one.size));
    Ok(made)
}

/// Whether a JPEG's segments lead to its end marker (ITU T.81, B.1).
fn is_whole_jpeg(bytes: &[u8]) -> bool {
    let mut at = 2;
    while let Some(&[mark, kind]) = bytes.get(at..at + 2) {
        at += match (mark, kind) {
            (0xff, 0xd9) => return true,
            // Padding in front of a marker.
            (0xff, 0xff) => 1,
            // Coded data behind a scan's header: up to the next marker that is no restart.
            (0xff, 0x00 | 0x01 | 0xd0..=0xd8) => 2,
            (0xff, _) => match bytes.get(at + 2..at + 4) {
                Some(&[high, low]) => 2 + u16::from_be_bytes([high, low]) as usize,
                _ => return false,
            },
            _ => 1,
        };
    }
    false
}

/// The picture with its longest side of `size` pixels; `None` if it is no longer than that.
fn fit(picture: &DynamicImage, size: u32) -> Result<Option<DynamicImage>, String> {
    let (width, height) = (picture.width(), picture.height());
    let longest = width.max(height);
    if longest <= size {
        return Ok(None);
    }
    let scaled = |side: u32| ((side as u64 * size as u64 / longest as u64) as u32).max(1);
    let (width, height) = (scaled(width), scaled(height));
    let wrong = || "it cannot be scaled".to_owned();
    let (pixels, of) = (width as usize * height as usize, (picture, width, height));
    let made = match picture {
        DynamicImage::ImageRgba8(_) => {
            let bytes = resized::<U8x4>(of, vec![0; 4 * pixels]).ok_or_else(wrong)?;
            image::RgbaImage::from_raw(width, height, bytes).map(DynamicImage::from)
        }
        _ => {
            let bytes = resized::<U8x3>(of, vec![0; 3 * pixels]).ok_or_else(wrong)?;
            image::RgbImage::from_raw(width, height, bytes).map(DynamicImage::from)
        }
    };
    made.map(Some).ok_or_else(wrong)
}

/// Scales into `bytes`, which are as many as the smaller picture has. For one kind of pixels at a
/// time: the library's face for all kinds takes a minute to compile.
fn resized<P: PixelTrait>(
    (picture, width, height): (&DynamicImage, u32, u32),
    mut bytes: Vec<u8>,
) -> Option<Vec<u8>> {
    let from =
        TypedImageRef::<P>::from_buffer(picture.width(), picture.height(), picture.as_bytes());
    let mut to = TypedImage::<P>::from_buffer(width, height, &mut bytes).ok()?;
    Resizer::new().resize_typed(&from.ok()?, &mut to, None).ok()?;
    Some(bytes)
}

fn encode(
    picture: &DynamicImage,
    profile: Option<&[u8]>,
) -> Result<(Vec<u8>, &'static str), String> {
    let mut bytes = Vec::new();
    let wrong = |e: image::ImageError| format!("a smaller picture of it cannot be encoded: {e}");
    // Colours are wrong without it, but a picture is a picture.
    let profile = profile.unwrap_or_default().to_vec();
    if picture.color().has_alpha() {
        let mut encoder = PngEncoder::new(&mut bytes);
        if !profile.is_empty() {
            let _ = encoder.set_icc_profile(profile);
        }
        picture.write_with_encoder(encoder).map_err(wrong)?;
        return Ok((bytes, "image/png"));
    }
    let mut encoder = JpegEncoder::new_with_quality(&mut bytes, JPEG_QUALITY);
    if !profile.is_empty() {
        let _ = encoder.set_icc_profile(profile);
    }
    picture.write_with_encoder(encoder).map_err(wrong)?;
    Ok((bytes, "image/jpeg"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{Rgb, RgbImage, Rgba, RgbaImage};

    fn encoded(picture: &DynamicImage, format: ImageFormat) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        picture.write_to(&mut bytes, format).unwrap();
        bytes.into_inner()
    }

    fn scaled(photo: &[u8], sizes: &str) -> Result<Vec<NewAlternate>, String> {
        scale(photo, &PhotoSizes::parse(sizes).unwrap(), &|bytes| bytes.len().to_string())
    }

    /// Left half red, right half blue.
    fn halves(width: u32, height: u32) -> DynamicImage {
        let colour = |x, _| if x < width / 2 { Rgb([220, 0, 0]) } else { Rgb([0, 0, 220]) };
        RgbImage::from_fn(width, height, colour).into()
    }

    #[test]
    fn each_size_has_its_longest_side_and_the_photos_shape() {
        let photo = encoded(&halves(800, 400), ImageFormat::Jpeg);
        let made = scaled(&photo, "75,720,180,2048").unwrap();
        let shapes: Vec<_> = made.iter().map(|one| (one.size, one.width, one.height)).collect();
        assert_eq!(shapes, [(75, 75, 37), (720, 720, 360), (180, 180, 90), (2048, 800, 400)]);
        for one in &made {
            let picture = image::load_from_memory(&one.bytes).unwrap().into_rgb8();
            assert_eq!((picture.width(), picture.height()), (one.width, one.height));
            let at = |x: u32| picture.get_pixel(x, one.height / 2).0;
            let (left, right) = (at(one.width / 8), at(one.width * 7 / 8));
            assert!(left[0] > 180 && left[2] < 60, "{left:?}");
            assert!(right[2] > 180 && right[0] < 60, "{right:?}");
            assert_eq!(one.content_type, "image/jpeg");
        }
    }

    /// A JPEG's bytes with an EXIF segment that says how the camera was held.
    fn held(jpeg: &[u8], orientation: u8) -> Vec<u8> {
        let mut exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0".to_vec();
        exif.extend_from_slice(&[orientation, 0, 0, 0, 0, 0, 0, 0]);
        let mut out = jpeg[..2].to_vec();
        out.extend_from_slice(&[0xff, 0xe1]);
        out.extend_from_slice(&(exif.len() as u16 + 2).to_be_bytes());
        out.extend_from_slice(&exif);
        out.extend_from_slice(&jpeg[2..]);
        out
    }

    #[test]
    fn a_photo_is_turned_as_its_camera_was_held() {
        // 6: what is the left side of the bytes is the top of the picture.
        let photo = held(&encoded(&halves(800, 400), ImageFormat::Jpeg), 6);
        let made = scaled(&photo, "200,100").unwrap();
        let shapes: Vec<_> = made.iter().map(|one| (one.width, one.height)).collect();
        assert_eq!(shapes, [(100, 200), (50, 100)]);
        for one in made {
            let picture = image::load_from_memory(&one.bytes).unwrap().into_rgb8();
            let top = picture.get_pixel(one.width / 2, one.height / 8).0;
            assert!(top[0] > 180 && top[2] < 60, "{top:?}");
        }
    }

    #[test]
    fn what_is_transparent_stays_so() {
        let clear: DynamicImage = RgbaImage::from_pixel(64, 64, Rgba([0, 200, 0, 0])).into();
        for format in [ImageFormat::Png, ImageFormat::WebP] {
            let made = scaled(&encoded(&clear, format), "32").unwrap();
            assert_eq!(made[0].content_type, "image/png");
            let picture = image::load_from_memory(&made[0].bytes).unwrap().into_rgba8();
            assert_eq!(picture.get_pixel(16, 16).0[3], 0);
        }
    }

    #[test]
    fn what_is_no_photo_is_refused_with_the_reason() {
        let photo = encoded(&halves(64, 64), ImageFormat::Jpeg);
        let bare = |bytes: &[u8]| scaled(bytes, "32").unwrap_err();
        assert!(bare(b"").contains("no JPEG"));
        assert!(bare(b"GIF is not what this is").contains("no JPEG"));
        for cut in [3, 40, photo.len() / 2, photo.len() - 1] {
            assert!(bare(&photo[..cut]).contains("cannot be decoded"), "{cut}");
        }
        // A PNG's head that promises 2^31 x 2^31 pixels.
        let mut vast = encoded(&halves(8, 8), ImageFormat::Png);
        vast[16..24].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]);
        let said = bare(&vast);
        assert!(said.contains("pixels") || said.contains("cannot be decoded"), "{said}");
        let large = vec![0; PHOTO_BYTES_MAX + 1];
        assert!(bare(&large).contains("bytes"));
    }

    #[test]
    fn sizes_are_few_and_sane() {
        assert_eq!(PhotoSizes::parse("2048, 720,180,75").unwrap().to_string(), "2048,720,180,75");
        for bad in ["", "0", "15", "8193", "72o", "180,180", "16,17,18,19,20,21,22,23,24", "-5"] {
            assert!(PhotoSizes::parse(bad).is_err(), "{bad}");
        }
    }
}
