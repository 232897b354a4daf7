//! The order of the crates. Reads manifests line by line: what is used is `name.workspace = true`
//! or `name = { ... }` in a dependency section.

use super::Finding;

/// From the bottom up; a crate depends on those further down only. The faces share one layer:
/// they never depend on each other.
pub const LAYERS: &[&[&str]] = &[
    // The first starts Kafka's brokers to test and to measure with, and knows nothing of ours.
    &["holdfast-brokers", "holdfast-base"],
    &["holdfast-cert"],
    &["holdfast-env"],
    &["holdfast-wire"],
    &["holdfast-cache-client"],
    &["holdfast-log"],
    &["holdfast-kafka"],
    &["holdfast-view"],
    &["holdfast-client"],
    &["holdfast-chunk"],
    &["holdfast-recovery"],
    &["holdfast-cluster"],
    &["holdfast-node"],
    &["holdfast-server"],
    &[
        "holdfast-blob",
        "holdfast-file",
        "holdfast-cache",
        "holdfast-invalidate",
        "holdfast-ride",
        "holdfast-scribe",
        "holdfast-sort",
        "holdfast-table",
    ],
    &["holdfast-shuffle"],
    &["holdfast-python"],
    &["holdfast-s3"],
    &["holdfast-dynamo"],
    &["holdfast-command"],
    &["holdfast-bench"],
    &["holdfast"],
];

/// For developing: they may use all, and all may use them for their tests, but never otherwise.
const TOOLS: &[&str] =
    &["holdfast-counter", "holdfast-sim", "holdfast-hotpaths", "holdfast-interleaved", "xtask"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Package,
    Normal,
    /// Tests may use the tools; otherwise they point down as well, or a test would show that a
    /// layer does not stand without what is above it.
    Dev,
    Other,
}

/// Checks every arrow between the workspace's crates. Takes (path, text) of each manifest.
pub fn check(manifests: &[(String, String)]) -> Vec<Finding> {
    manifests.iter().flat_map(|(file, text)| check_one(file, text)).collect()
}

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&name))
}

fn is_ours(name: &str) -> bool {
    name == "xtask" || name == "holdfast" || name.starts_with("holdfast-")
}

/// A crate, and the crates of ours that it is made of: not those of its tests.
pub fn arrows_of(text: &str) -> (String, Vec<String>) {
    let (package, arrows) = read_manifest(text);
    let made_of = |(_, section, target): (usize, Section, String)| {
        (section == Section::Normal && is_ours(&target) && target != package).then_some(target)
    };
    let arrows = arrows.into_iter().filter_map(made_of).collect();
    (package, arrows)
}

/// The package's name, and (line, section, name) of everything that it depends on.
fn read_manifest(text: &str) -> (String, Vec<(usize, Section, String)>) {
    let mut section = Section::Other;
    let mut package = String::new();
    let mut arrows = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_end_matches(']');
            section = section_of(header);
            // `[dependencies.holdfast-x]`
            if let Some((before, name)) = header.rsplit_once('.')
                && before.ends_with("dependencies")
            {
                section = section_of(before);
                arrows.push((index + 1, section, name.to_owned()));
                section = Section::Other;
            }
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let key = key.trim().split('.').next().unwrap_or_default().trim_matches('"');
        match section {
            Section::Package if key == "name" => package = value.trim().trim_matches('"').into(),
            Section::Normal | Section::Dev => arrows.push((index + 1, section, key.to_owned())),
            _ => {}
        }
    }
    (package, arrows)
}

fn check_one(file: &str, text: &str) -> Vec<Finding> {
    let (package, mut arrows) = read_manifest(text);
    if package.is_empty() {
        // The workspace's own manifest.
        return Vec::new();
    }
    arrows.retain(|(_, _, target)| is_ours(target) && *target != package);
    let mut findings = Vec::new();
    let Some(from) = layer(&package) else {
        if !TOOLS.contains(&package.as_str()) {
            let what = format!("crate `{package}` has no layer: give it one in the list of tidy");
            findings.push(Finding::new(file, 0, what));
        }
        return findings;
    };
    for (line, section, target) in arrows {
        let what = if TOOLS.contains(&target.as_str()) {
            if section == Section::Dev {
                continue;
            }
            format!("`{package}` depends on `{target}`, which is for developing only")
        } else {
            match layer(&target) {
                Some(to) if to < from => continue,
                Some(to) if to == from => {
                    format!("`{package}` depends on `{target}`, which is in the same layer")
                }
                Some(_) => format!("`{package}` depends on `{target}`, which is above it"),
                None => format!("`{package}` depends on `{target}`, which has no layer"),
            }
        };
        findings.push(Finding::new(file, line, what));
    }
    findings
}

fn section_of(header: &str) -> Section {
    match header.rsplit('.').next().unwrap_or_default() {
        "package" if header == "package" => Section::Package,
        "dev-dependencies" => Section::Dev,
        // `[workspace.dependencies]` only names versions.
        "dependencies" if header == "workspace.dependencies" => Section::Other,
        "dependencies" | "build-dependencies" => Section::Normal,
        _ => Section::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(package: &str, rest: &str) -> Vec<String> {
        let text = format!("[package]\nname = \"{package}\"\n{rest}");
        check_one("Cargo.toml", &text).into_iter().map(|f| f.to_string()).collect()
    }

    #[test]
    fn arrows_point_down() {
        let down = "[dependencies]\nholdfast-base.workspace = true\nlibc = \"0.2\"\n";
        assert_eq!(findings("holdfast-env", down), [""; 0]);
        let up = "[dependencies]\nholdfast-log = { path = \"../log\" }\n";
        assert_eq!(
            findings("holdfast-env", up),
            ["Cargo.toml:4: `holdfast-env` depends on `holdfast-log`, which is above it"]
        );
        for section in ["dev-dependencies", "build-dependencies", "target.'cfg(unix)'.dependencies"]
        {
            let up = format!("[{section}]\nholdfast-log.workspace = true\n");
            assert_eq!(findings("holdfast-env", &up).len(), 1, "{section}");
        }
        let table = "[dependencies.holdfast-log]\nworkspace = true\n";
        assert_eq!(findings("holdfast-env", table).len(), 1);
    }

    #[test]
    fn tools_are_for_tests() {
        let sim = "holdfast-sim.workspace = true\n";
        assert_eq!(findings("holdfast-log", &format!("[dev-dependencies]\n{sim}")), [""; 0]);
        assert_eq!(findings("holdfast-log", &format!("[dependencies]\n{sim}")).len(), 1);
        let all = "[dependencies]\nholdfast-file.workspace = true\n";
        assert_eq!(findings("holdfast-sim", all), [""; 0]);
    }

    #[test]
    fn every_crate_has_a_layer() {
        assert_eq!(findings("holdfast-new", "").len(), 1);
        let unknown = "[dependencies]\nholdfast-new.workspace = true\n";
        assert_eq!(findings("holdfast-log", unknown).len(), 1);
    }

    #[test]
    fn the_workspace_manifest_names_versions_only() {
        let text = "[workspace.dependencies]\nholdfast-sim = { path = \"crates/sim\" }\n";
        assert_eq!(check_one("Cargo.toml", text), []);
    }
}
