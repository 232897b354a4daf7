//! Leaves single fields of values that are JSON objects, for riders who want no more of them.

use super::header::About;
use super::record::{Walk, put_value};
use super::{Column, Content, Slab, What};
use serde::de::{DeserializeSeed, Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// The slab with values that have only these fields, as they were written, in this order; a value
/// that is no JSON object has none of them: `{}`. Of a field that an object names twice the last is
/// left. Keys are shared. To be made once for all riders who want the same fields of a slab.
pub fn fields(slab: &Slab, names: &[String]) -> Slab {
    let mut wanted: Vec<Field<'_>> = Vec::with_capacity(names.len());
    for name in names {
        if wanted.iter().all(|field| field.name != name) {
            let written = serde_json::to_string(name).expect("text can be written");
            wanted.push(Field { name, written });
        }
    }
    let mut made = slab.pairs().into_iter().filter(|pair| pair.values.is_some()).map(|pair| {
        let (mut bytes, mut value) = (Vec::new(), Vec::new());
        let mut walk = Walk::new(&slab.header, pair);
        while let Some(step) = walk.step().expect("a slab's own columns are right") {
            value.clear();
            if let Content::Value(whole) = step.received.content {
                leave(whole, &wanted, &mut value);
            }
            put_value(&mut bytes, &value);
        }
        let about = About::new(pair.collection, pair.group, What::Values, pair.items, &bytes);
        Column::new(about, bytes)
    });
    let columns = slab.columns.iter().map(|column| match column.about.what {
        What::Keys => column.clone(),
        What::Values => made.next().expect("each column of values has its keys"),
    });
    let columns = columns.collect();
    Slab { header: slab.header, needs: slab.needs.clone(), columns }
}

/// A field that is to be left.
struct Field<'a> {
    name: &'a str,
    /// As JSON has it.
    written: String,
}

fn leave(value: &[u8], wanted: &[Field<'_>], out: &mut Vec<u8>) {
    let names: Vec<&str> = wanted.iter().map(|field| field.name).collect();
    out.push(b'{');
    for (field, value) in wanted.iter().zip(&find(value, &names)) {
        let Some(value) = value else { continue };
        if out.len() > 1 {
            out.push(b',');
        }
        out.extend_from_slice(field.written.as_bytes());
        out.push(b':');
        out.extend_from_slice(value.get().as_bytes());
    }
    out.push(b'}');
}

/// Of a JSON object the values of these fields, as they are written; nothing of what is none.
pub(super) fn find<'json>(value: &'json [u8], names: &[&str]) -> Vec<Option<&'json RawValue>> {
    let mut json = serde_json::Deserializer::from_slice(value);
    let object = json.deserialize_map(Object(names));
    object.and_then(|found| json.end().map(|()| found)).unwrap_or_default()
}

/// Reads an object: the values of the wanted fields, as they are written.
struct Object<'a>(&'a [&'a str]);

impl<'json> Visitor<'json> for Object<'_> {
    type Value = Vec<Option<&'json RawValue>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'json>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut found = vec![None; self.0.len()];
        while let Some(place) = map.next_key_seed(Place(self.0))? {
            match place {
                Some(at) => found[at] = Some(map.next_value()?),
                None => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(found)
    }
}

/// Reads a field's name: its place among the wanted ones.
struct Place<'a>(&'a [&'a str]);

impl<'json> DeserializeSeed<'json> for Place<'_> {
    type Value = Option<usize>;

    fn deserialize<D: serde::Deserializer<'json>>(self, name: D) -> Result<Self::Value, D::Error> {
        name.deserialize_str(self)
    }
}

impl Visitor<'_> for Place<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().position(|wanted| *wanted == name))
    }
}
