//! The page that walks through this crate shows it as it is.

use std::fs;
use std::path::Path;

/// Every block of code of the page, behind a line that names its file, stands in that file.
#[test]
fn the_page_quotes_what_is_built() {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(crate_root.join("../../docs/add-a-face.md")).unwrap();
    let mut quoted = 0;
    for block in page.split("```rust file=").skip(1) {
        let (file, rest) = block.split_once('\n').unwrap();
        let (code, _) = rest.split_once("```").unwrap();
        let source = fs::read_to_string(crate_root.join(file)).unwrap();
        for part in code.split("// ...\n") {
            assert!(source.contains(part.trim_matches('\n')), "{file} has no such lines:\n{part}");
        }
        quoted += 1;
    }
    assert!(quoted >= 4, "the page quotes {quoted} pieces");
}
