//! Byte units, read and printed one way everywhere.

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// Reads `512`, `64K`, `3G`, `1.5M`, `20MB`, `4KiB`: powers of 1024, any case.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let suffix = suffix.trim().to_ascii_lowercase();
    let shift = match suffix.trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(format!("read size `{text}`: unknown unit `{suffix}`, use K, M, G or T")),
    };
    let value: f64 = number
        .parse()
        .map_err(|_| format!("read size `{text}`: `{number}` is not a number, write e.g. 64M"))?;
    let bytes = value * (1u64 << shift) as f64;
    if bytes >= (1u64 << 62) as f64 {
        return Err(format!("read size `{text}`: more than 4 EiB, use a smaller size"));
    }
    Ok(bytes as u64)
}

/// Prints with three significant digits: `0 B`, `999 B`, `1.00 KiB`, `63.9 MiB`.
pub fn format_bytes(bytes: u64) -> String {
    if bytes < KIB {
        return format!("{bytes} B");
    }
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.decimals$} {}", units[unit])
}

/// Prints as a person writes it in a setting, exactly: `0 B`, `100 B`, `20 KB`, `1536 KB`, `10 MB`.
pub fn format_setting(bytes: u64) -> String {
    let units = [(GIB, "GB"), (MIB, "MB"), (KIB, "KB")];
    let whole = units.into_iter().find(|(unit, _)| bytes > 0 && bytes.is_multiple_of(*unit));
    let (unit, name) = whole.unwrap_or((1, "B"));
    format!("{} {name}", bytes / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("64K", 65536),
            ("3g", 3 << 30),
            ("1.5M", 3 << 19),
            ("20MB", 20 << 20),
            ("4KiB", 4096),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "12Q", "1.2.3", "-5", "9999999T"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn settings_are_printed_as_they_may_be_written() {
        for (bytes, text) in [
            (0, "0 B"),
            (100, "100 B"),
            (1025, "1025 B"),
            (20 << 10, "20 KB"),
            (3 << 19, "1536 KB"),
            (10 << 20, "10 MB"),
            (2 << 40, "2048 GB"),
        ] {
            assert_eq!(format_setting(bytes), text);
            assert_eq!(parse_bytes(text), Ok(bytes));
        }
    }

    #[test]
    fn sizes_are_printed() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (67_000_000, "63.9 MiB"),
            (1 << 40, "1.00 TiB"),
        ] {
            assert_eq!(format_bytes(bytes), text);
        }
    }
}
