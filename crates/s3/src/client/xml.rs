//! Answers' XML, read for the few fields that the tools need: elements by name, without nesting of
//! the same name, which S3's answers do not have.

/// The text between the first `<name>` and its end.
pub fn element(xml: &str, name: &str) -> Option<String> {
    inner(xml, name).map(|(text, _)| unescape(text))
}

/// What every `<name>` holds, as XML.
pub fn elements<'x>(xml: &'x str, name: &str) -> Vec<&'x str> {
    let (mut found, mut rest) = (Vec::new(), xml);
    while let Some((text, after)) = inner(rest, name) {
        found.push(text);
        rest = after;
    }
    found
}

fn inner<'x>(xml: &'x str, name: &str) -> Option<(&'x str, &'x str)> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let start = xml.find(&open)? + open.len();
    let end = start + xml[start..].find(&close)?;
    Some((&xml[start..end], &xml[end + close.len()..]))
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let Some(end) = rest.find(';') else { break };
        let code = |digits: &str, radix| char::from_u32(u32::from_str_radix(digits, radix).ok()?);
        let found = match &rest[1..end] {
            "amp" => Some('&'),
            "lt" => Some('<'),
            "gt" => Some('>'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            other => match (other.strip_prefix("#x"), other.strip_prefix('#')) {
                (Some(digits), _) => code(digits, 16),
                (None, Some(digits)) => code(digits, 10),
                (None, None) => None,
            },
        };
        match found {
            Some(char) => out.push(char),
            None => out.push_str(&rest[..=end]),
        }
        rest = &rest[end + 1..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found_and_their_text_is_unescaped() {
        let xml = "<A><C><Key>a&amp;b&#x2F;&#10;</Key></C><C><Key>&nope;&</Key></C></A>";
        let keys: Vec<_> = elements(xml, "C").iter().map(|c| element(c, "Key").unwrap()).collect();
        assert_eq!(keys, ["a&b/\n", "&nope;&"]);
        assert_eq!(element(xml, "Missing"), None);
    }
}
