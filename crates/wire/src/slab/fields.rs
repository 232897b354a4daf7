//! Leaves single fields of values that are JSON objects, for riders who want no more of them.

use super::header::About;
use super::record::{Pair, Walk, put_value};
use super::{Column, Content, Needs, Slab, What};
use holdfast_base::{Error, Result};
use serde::de::{DeserializeSeed, Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;
use std::sync::Arc;

/// Fields that one rider may ask for.
pub const FIELDS_MAX: usize = 64;
/// Of a field's name, here and in an index.
pub const FIELD_BYTES_MAX: usize = 1000;

/// What is left of values: an object of these fields, in this order, as they were written. A value
/// that is no JSON object has none of them: `{}`. Of a field that an object names twice the last is
/// left. So no value becomes longer, but for one of a single byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields(Vec<Field>);

/// A field that is to be left.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    name: String,
    /// As JSON has it.
    written: String,
}

impl Fields {
    /// `Invalid` where there is none, or too many, or a name that is too long.
    pub fn new(names: &[String]) -> Result<Fields> {
        let mut fields: Vec<Field> = Vec::with_capacity(names.len());
        for name in names {
            if name.len() > FIELD_BYTES_MAX {
                return Err(Error::invalid(format!(
                    "leave fields of values: a field's name has {} bytes: it may have \
                     {FIELD_BYTES_MAX}",
                    name.len()
                )));
            }
            if fields.iter().all(|field| field.name != *name) {
                let written = serde_json::to_string(name).expect("text can be written");
                fields.push(Field { name: name.clone(), written });
            }
        }
        match fields.len() {
            1..=FIELDS_MAX => Ok(Fields(fields)),
            many => Err(Error::invalid(format!(
                "leave fields of values: {many} fields are named: name 1 to {FIELDS_MAX}"
            ))),
        }
    }

    fn names(&self) -> Vec<&str> {
        self.0.iter().map(|field| &*field.name).collect()
    }

    fn leave(&self, value: &[u8], names: &[&str], out: &mut Vec<u8>) {
        out.push(b'{');
        for (field, value) in self.0.iter().zip(&find(value, names)) {
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

    /// What is left of one value.
    pub fn of_value(&self, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        self.leave(value, &self.names(), &mut out);
        out
    }

    /// A group's values with these fields alone.
    fn column(&self, slab: &Slab, values: &Column, pair: Pair<'_>) -> Column {
        let names = self.names();
        let (mut bytes, mut value) = (Vec::new(), Vec::new());
        let mut walk = Walk::new(&slab.header, pair);
        while let Some(step) = walk.step().expect("a slab's own columns are right") {
            value.clear();
            if let Content::Value(whole) = step.received.content {
                self.leave(whole, &names, &mut value);
            }
            put_value(&mut bytes, &value);
        }
        bytes.shrink_to_fit();
        let about = About::new(pair.collection, pair.group, What::Values, pair.items, &bytes);
        Column::new(about, values.indices, bytes)
    }
}

impl Slab {
    /// The slab with values that have these fields alone. Keys are shared. `keep` is asked for what
    /// was made before of a column of values, and told how it is made: it is to be made once for all
    /// riders who want the same.
    pub fn with_fields(
        &self,
        fields: &Fields,
        mut keep: impl FnMut(&Column, &dyn Fn() -> Column) -> Column,
    ) -> Slab {
        let mut pairs = self.pairs().into_iter().filter(|pair| pair.values.is_some());
        let columns = self.columns.iter().map(|column| match column.about.what {
            What::Keys => column.clone(),
            What::Values => {
                let pair = pairs.next().expect("each column of values has its keys");
                keep(column, &|| fields.column(self, column, pair))
            }
        });
        let columns = columns.collect();
        // It says of no run of items all that there is.
        Slab { header: self.header, needs: Arc::new(Needs::nothing()), columns }
    }
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
