//! N-Triples, by the grammar of the W3C's recommendation of 2014: one triple a line. A triple is its own
//! key, written in one way whatever way the file has it, so that it is there once; the value has its
//! terms as text, for an index to find them.

use super::{PutEach, next_text, wrong};
use holdfast_base::Result;
use holdfast_wire::slab::KEY_BYTES_MAX;
use serde_json::{Map, Value};
use std::io::BufRead;

const RIGHT: &str = "a line is a subject, a predicate, an object and a full stop, as in \
                     `<http://s> <http://p> \"o\"@en .`";

type Parsed<T> = std::result::Result<T, String>;

/// Puts each triple.
pub fn read(input: &mut dyn BufRead, put: &mut PutEach<'_>) -> Result<()> {
    let mut line = Vec::new();
    for number in 1.. {
        let Some(text) = next_text(input, number, &mut line)? else { break };
        // A carriage return ends a line, too.
        for text in text.split('\r') {
            let triple = parse(text).map_err(|what| wrong(number, what, RIGHT))?;
            let Some(Triple { key, value }) = triple else { continue };
            if key.len() > KEY_BYTES_MAX {
                let what = format!("has a triple of {} bytes", key.len());
                let right = format!("a triple is its own key, which has up to {KEY_BYTES_MAX}");
                return Err(wrong(number, what, &right));
            }
            put(key.as_bytes(), value.as_bytes())?;
        }
    }
    Ok(())
}

struct Triple {
    key: String,
    value: String,
}

/// What stands in a triple.
enum Term {
    Iri(String),
    /// Its label.
    Blank(String),
    Literal {
        text: String,
        language: Option<String>,
        datatype: Option<String>,
    },
}

impl Term {
    /// As a file has it, with no more escaped than has to be.
    fn written(&self) -> String {
        match self {
            Term::Iri(iri) => format!("<{iri}>"),
            Term::Blank(label) => format!("_:{label}"),
            Term::Literal { text, language, datatype } => {
                let mut out = String::from("\"");
                for c in text.chars() {
                    match c {
                        '"' => out.push_str("\\\""),
                        '\\' => out.push_str("\\\\"),
                        '\n' => out.push_str("\\n"),
                        '\r' => out.push_str("\\r"),
                        c => out.push(c),
                    }
                }
                out.push('"');
                language.iter().for_each(|language| out.push_str(&format!("@{language}")));
                datatype.iter().for_each(|datatype| out.push_str(&format!("^^<{datatype}>")));
                out
            }
        }
    }

    /// What an index has of it.
    fn text(&self) -> String {
        match self {
            Term::Iri(iri) => iri.clone(),
            Term::Blank(label) => format!("_:{label}"),
            Term::Literal { text, .. } => text.clone(),
        }
    }
}

/// A line's triple; none in one that is empty or a comment.
fn parse(line: &str) -> Parsed<Option<Triple>> {
    let mut rest = line;
    blank(&mut rest);
    if rest.is_empty() || rest.starts_with('#') {
        return Ok(None);
    }
    let subject = term(&mut rest)?;
    if matches!(subject, Term::Literal { .. }) {
        return Err("has a literal as its subject".to_owned());
    }
    blank(&mut rest);
    let predicate = term(&mut rest)?;
    if !matches!(predicate, Term::Iri(_)) {
        return Err("has a predicate that is no IRI".to_owned());
    }
    blank(&mut rest);
    let object = term(&mut rest)?;
    blank(&mut rest);
    rest = rest.strip_prefix('.').ok_or("has no full stop behind its object")?;
    blank(&mut rest);
    if !rest.is_empty() && !rest.starts_with('#') {
        return Err("goes on behind its full stop".to_owned());
    }
    let key = [&subject, &predicate, &object].map(Term::written).join(" ");
    let mut value = Map::new();
    let mut add = |name: &str, text: String| value.insert(name.to_owned(), Value::String(text));
    add("subject", subject.text());
    add("predicate", predicate.text());
    add("object", object.text());
    if let Term::Literal { language, datatype, .. } = object {
        language.map(|language| add("language", language));
        datatype.map(|datatype| add("datatype", datatype));
    }
    Ok(Some(Triple { key, value: Value::Object(value).to_string() }))
}

fn blank(rest: &mut &str) {
    *rest = rest.trim_start_matches([' ', '\t']);
}

fn term(rest: &mut &str) -> Parsed<Term> {
    match rest.chars().next() {
        Some('<') => Ok(Term::Iri(iri(rest)?)),
        Some('_') => Ok(Term::Blank(label(rest)?)),
        Some('"') => literal(rest),
        Some(c) => Err(format!("has `{}` where a term begins", c.escape_debug())),
        None => Err("ends where a term begins".to_owned()),
    }
}

fn iri(rest: &mut &str) -> Parsed<String> {
    let inside = rest.strip_prefix('<').ok_or("has no `<` where an IRI begins")?;
    let end = inside.find('>').ok_or("has an IRI without its `>`")?;
    let (written, behind) = (&inside[..end], &inside[end + 1..]);
    let iri = unescaped(written, "")?;
    let is_wrong = |c: &char| *c <= ' ' || "<>\"{}|^`\\".contains(*c);
    if let Some(c) = iri.chars().find(is_wrong) {
        return Err(format!("has `{}` in an IRI", c.escape_debug()));
    }
    let scheme = iri.split_once(':').map_or("", |(scheme, _)| scheme);
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    if !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || !scheme.chars().all(is_fine) {
        return Err(format!("has an IRI that is not absolute, `{}`", iri.escape_debug()));
    }
    *rest = behind;
    Ok(iri)
}

fn label(rest: &mut &str) -> Parsed<String> {
    let inside = rest.strip_prefix("_:").ok_or("has `_` where a term begins")?;
    let end = inside.find(|c| !is_of_label(c) && c != '.').unwrap_or(inside.len());
    // A full stop at its end is not of it.
    let label = inside[..end].trim_end_matches('.');
    if !label.starts_with(|c: char| is_begin(c) || "_:".contains(c) || c.is_ascii_digit()) {
        return Err("has a blank node without a label".to_owned());
    }
    *rest = &inside[label.len()..];
    Ok(label.to_owned())
}

/// PN_CHARS_BASE.
fn is_begin(c: char) -> bool {
    matches!(c, 'A'..='Z' | 'a'..='z'
        | '\u{c0}'..='\u{d6}' | '\u{d8}'..='\u{f6}' | '\u{f8}'..='\u{2ff}'
        | '\u{370}'..='\u{37d}' | '\u{37f}'..='\u{1fff}' | '\u{200c}'..='\u{200d}'
        | '\u{2070}'..='\u{218f}' | '\u{2c00}'..='\u{2fef}' | '\u{3001}'..='\u{d7ff}'
        | '\u{f900}'..='\u{fdcf}' | '\u{fdf0}'..='\u{fffd}' | '\u{10000}'..='\u{effff}')
}

/// PN_CHARS.
fn is_of_label(c: char) -> bool {
    is_begin(c)
        || matches!(c, '_' | ':' | '-' | '0'..='9' | '\u{b7}')
        || matches!(c, '\u{300}'..='\u{36f}' | '\u{203f}'..='\u{2040}')
}

fn literal(rest: &mut &str) -> Parsed<Term> {
    let inside = &rest[1..];
    let mut is_escaped = false;
    let end = inside.find(|c| {
        let ends = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends
    });
    let end = end.ok_or("has a literal without its closing double quotes")?;
    let text = unescaped(&inside[..end], "tbnrf\"'\\")?;
    let behind = &inside[end + 1..];
    if let Some(tag) = behind.strip_prefix('@') {
        let end = tag.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(tag.len());
        let mut parts = tag[..end].split('-');
        let first = parts.next().unwrap_or_default();
        let is_tag = !first.is_empty() && first.chars().all(|c| c.is_ascii_alphabetic());
        if !is_tag || parts.any(str::is_empty) {
            return Err(format!("has a literal with a wrong language, `@{}`", &tag[..end]));
        }
        *rest = &tag[end..];
        return Ok(Term::Literal { text, language: Some(tag[..end].to_owned()), datatype: None });
    }
    *rest = behind;
    let datatype = match behind.strip_prefix("^^") {
        Some(typed) => {
            *rest = typed;
            Some(iri(rest)?)
        }
        None => None,
    };
    Ok(Term::Literal { text, language: None, datatype })
}

/// Text without its escapes: `\u` and four, `\U` and eight hexadecimal digits, and the letters that are
/// allowed here.
fn unescaped(written: &str, letters: &str) -> Parsed<String> {
    let mut out = String::with_capacity(written.len());
    let mut rest = written;
    while let Some((plain, escape)) = rest.split_once('\\') {
        out.push_str(plain);
        let letter = escape.chars().next().unwrap_or(' ');
        let digits = match letter {
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        if digits > 0 {
            let hex =
                escape.get(1..1 + digits).filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
            let code = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok());
            let c = code.and_then(char::from_u32);
            out.push(c.ok_or_else(|| format!("has `\\{letter}` and no character behind it"))?);
            rest = &escape[1 + digits..];
            continue;
        }
        if !letters.contains(letter) {
            return Err(format!(
                "has `\\{}`, which stands for nothing here",
                letter.escape_debug()
            ));
        }
        out.push(match letter {
            't' => '\t',
            'b' => '\u{8}',
            'n' => '\n',
            'r' => '\r',
            'f' => '\u{c}',
            c => c,
        });
        rest = &escape[1..];
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Vec<(String, Value)>> {
        let mut found = Vec::new();
        read(&mut text.as_bytes(), &mut |key, value| {
            let key = String::from_utf8(key.to_vec()).unwrap();
            found.push((key, serde_json::from_slice(value).unwrap()));
            Ok(())
        })?;
        Ok(found)
    }

    /// From the examples of the recommendation, and what is easily read wrongly.
    #[test]
    fn triples_are_read_by_the_grammar() {
        for (line, key, object) in [
            ("<s:a> <p:b> <o:c> .", "<s:a> <p:b> <o:c>", "o:c"),
            ("<s:a><p:b><o:c>.# text", "<s:a> <p:b> <o:c>", "o:c"),
            ("\t_:a.b  <p:b>\t_:c. ", "_:a.b <p:b> _:c", "_:c"),
            ("_:0 <p:b> _:_-ä.", "_:0 <p:b> _:_-ä", "_:_-ä"),
            ("<s:a> <p:b> \"\" .", "<s:a> <p:b> \"\"", ""),
            (
                r#"<s:a> <p:b> "a\t\"\\\u00E4\U0001F600\'." ."#,
                "<s:a> <p:b> \"a\t\\\"\\\\ä😀'.\"",
                "a\t\"\\ä😀'.",
            ),
            (
                r#"<s:a> <p:b> "line\nand\rback" ."#,
                r#"<s:a> <p:b> "line\nand\rback""#,
                "line\nand\rback",
            ),
            (r#"<s:\u0061> <p:b> "x"@en-GB-1 ."#, r#"<s:a> <p:b> "x"@en-GB-1"#, "x"),
            (r#"<s:a> <p:b> "1"^^<d:int>."#, r#"<s:a> <p:b> "1"^^<d:int>"#, "1"),
        ] {
            let found = of(line).unwrap();
            assert_eq!(found.len(), 1, "{line}");
            assert_eq!(
                (found[0].0.as_str(), &found[0].1["object"]),
                (key, &object.into()),
                "{line}"
            );
            assert_eq!(
                of(&format!("{} .", found[0].0)).unwrap(),
                found,
                "what is written is read: {line}"
            );
        }
        let found =
            of("# none\n\n<s:a> <p:b> \"x\"@en .\r\n<s:a> <p:b> \"x\"^^<d:t> .\r<s:a> <p:b> _:o .");
        let values: Vec<Value> = found.unwrap().into_iter().map(|(_, value)| value).collect();
        let common = r#""subject": "s:a", "predicate": "p:b""#;
        for (value, more) in values.iter().zip([
            r#""object": "x", "language": "en""#,
            r#""object": "x", "datatype": "d:t""#,
            r#""object": "_:o""#,
        ]) {
            let wanted: Value = serde_json::from_str(&format!("{{{common}, {more}}}")).unwrap();
            assert_eq!(*value, wanted);
        }
        assert_eq!(values.len(), 3);
    }

    /// As the recommendation's own negative tests have them.
    #[test]
    fn a_bad_line_is_named_by_its_number() {
        for (line, named) in [
            ("<s:a> <p:b> <o:c>", "no full stop"),
            ("<s:a> <p:b> .", "`.` where a term begins"),
            ("<s:a> <p:b>", "ends where a term begins"),
            ("<s:a> <p:b> <o:c> . <s:a>", "goes on behind"),
            ("<s:a> <p:b> <o:c>, <o:d> .", "no full stop"),
            ("\"s\" <p:b> <o:c> .", "a literal as its subject"),
            ("<s:a> _:p <o:c> .", "a predicate that is no IRI"),
            ("<s:a> \"p\" <o:c> .", "a predicate that is no IRI"),
            ("<s:a b> <p:b> <o:c> .", "` ` in an IRI"),
            (r"<s:\u0020> <p:b> <o:c> .", "` ` in an IRI"),
            (r"<s:\n> <p:b> <o:c> .", r"`\n`, which stands for nothing"),
            (r"<s:\u00zz> <p:b> <o:c> .", r"`\u` and no character"),
            (r"<s:\U00110000> <p:b> <o:c> .", r"`\U` and no character"),
            ("<s:{a}> <p:b> <o:c> .", "`{` in an IRI"),
            ("<a> <p:b> <o:c> .", "not absolute"),
            ("<s:a <p:b> <o:c> .", "in an IRI"),
            ("<s:a> <p:b> 1 .", "`1` where a term begins"),
            ("<s:a> <p:b> 'x' .", "where a term begins"),
            ("<s:a> <p:b> \"x\"@1 .", "wrong language"),
            ("<s:a> <p:b> \"x\"@en- .", "wrong language"),
            ("<s:a> <p:b> \"x\"@ .", "wrong language"),
            ("<s:a> <p:b> \"x\"^^int .", "`<` where an IRI"),
            ("<s:a> <p:b> \"x .", "without its closing"),
            (r#"<s:a> <p:b> "x\" ."#, "without its closing"),
            (r#"<s:a> <p:b> "\a" ."#, r"`\a`, which stands for nothing"),
            (r#"<s:a> <p:b> "\ud800" ."#, r"`\u` and no character"),
            ("_: <p:b> <o:c> .", "without a label"),
            ("_a <p:b> <o:c> .", "where a term begins"),
            ("@prefix a: <s:a> .", "where a term begins"),
        ] {
            let refused = of(&format!("<s:a> <p:b> <o:c> .\n{line}\n")).unwrap_err();
            assert!(refused.message.starts_with("line 2 "), "{line}: {refused}");
            assert!(refused.message.contains(named), "{line}: {refused}");
        }
        let long = format!("<s:a> <p:b> \"{}\" .", "x".repeat(KEY_BYTES_MAX));
        assert!(of(&long).unwrap_err().message.contains("a triple of"));
    }
}
