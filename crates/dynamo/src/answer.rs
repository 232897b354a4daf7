//! An answer's document, written as its items come. As a tree, an item of small values takes hundreds of times the
//! bytes that it counts, and a page of such items more than a machine has; as text it takes few times as many, which
//! count in what the process may hold for its clients from the moment on in which they are written.

use crate::fault::{Fault, Result, Type};
use crate::json::{put_item, put_text};
use crate::value::Item;
use holdfast_env::budget::Share;
use holdfast_env::trial::Knob;
use holdfast_env::{Budget, planted};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of text from which on no further item is put into an answer: more than 1 MiB of items is, unless they are
/// made of numbers of a hundred digits, and the like. Tests set it; no seed draws it, for what is read as one is refused
/// by it.
pub static ANSWER_BYTES: Knob = Knob::new("dynamo.answer-bytes", 32 << 20, &[32 << 20]);

/// An answer: its document's parts by name, as text.
pub struct Answer {
    parts: BTreeMap<String, String>,
    budget: Arc<Budget>,
    shares: Vec<Share>,
}

impl Answer {
    /// An empty document.
    pub fn new(budget: &Arc<Budget>) -> Answer {
        Answer { parts: BTreeMap::new(), budget: budget.clone(), shares: Vec::new() }
    }

    /// Of a small document, which is an object.
    pub fn of(budget: &Arc<Budget>, document: Json) -> Answer {
        let mut answer = Answer::new(budget);
        if let Json::Object(parts) = document {
            parts.iter().for_each(|(name, part)| answer.put(name, part));
        }
        answer
    }

    /// A small part.
    pub fn put(&mut self, name: &str, part: &Json) {
        self.parts.insert(name.to_owned(), part.to_string());
    }

    /// An item, whatever memory there is: of a write, which is done.
    pub fn put_item(&mut self, name: &str, item: &Item) {
        let mut text = String::new();
        put_item(&mut text, item);
        self.shares.push(self.budget.hold(text.len() as u64));
        self.parts.insert(name.to_owned(), text);
    }

    /// An item that was read; false, and it is not there, where others have the memory.
    pub fn offer_item(&mut self, name: &str, item: &Item) -> bool {
        let mut share = self.budget.hold(0);
        let mut text = String::new();
        put_item(&mut text, item);
        let fits = share.grow(text.len() as u64);
        if fits {
            self.shares.push(share);
            self.parts.insert(name.to_owned(), text);
        }
        fits
    }

    /// Several.
    pub fn put_items(&mut self, name: &str, items: Items) {
        let (text, share) = items.into_parts();
        self.parts.insert(name.to_owned(), text);
        self.shares.push(share);
    }

    /// Several for each of some names.
    pub fn put_items_by_name(&mut self, name: &str, all: Vec<(&str, Items)>) {
        let mut parts = BTreeMap::new();
        for (of, items) in all {
            let (text, share) = items.into_parts();
            parts.insert(of.to_owned(), text);
            self.shares.push(share);
        }
        self.parts.insert(name.to_owned(), object(&parts));
    }

    /// The document, and the memory that it takes.
    pub fn finish(self) -> (String, Share) {
        let text = object(&self.parts);
        drop(self.parts);
        // As much as was taken already, and what stands around it.
        let share = self.budget.hold(text.len() as u64);
        (text, share)
    }
}

fn object(parts: &BTreeMap<String, String>) -> String {
    let bytes: usize = parts.iter().map(|(name, part)| name.len() + part.len() + 4).sum();
    let mut out = String::with_capacity(bytes + 2);
    out.push('{');
    for (at, (name, part)) in parts.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        put_text(&mut out, name);
        out.push(':');
        out.push_str(part);
    }
    out.push('}');
    out
}

/// Items, one after the other.
pub struct Items {
    text: String,
    share: Share,
}

impl Items {
    /// None yet.
    pub fn new(budget: &Arc<Budget>) -> Items {
        Items { text: "[".into(), share: budget.hold(0) }
    }

    /// Puts one behind the others; false, and it is not there, where others have the memory.
    pub fn push(&mut self, item: &Item) -> bool {
        self.push_text(|out| put_item(out, item))
    }

    /// Puts an object behind the others, with the item in it, if there is one.
    pub fn push_within(&mut self, name: &str, item: Option<&Item>) -> bool {
        self.push_text(|out| {
            out.push('{');
            if let Some(item) = item {
                put_text(out, name);
                out.push(':');
                put_item(out, item);
            }
            out.push('}');
        })
    }

    fn push_text(&mut self, put: impl FnOnce(&mut String)) -> bool {
        let before = self.text.len();
        if before > 1 {
            self.text.push(',');
        }
        put(&mut self.text);
        let more = (self.text.len() - before) as u64;
        let fits = planted!("dynamo.answers-not-counted") || self.share.grow(more);
        if !fits {
            self.text.truncate(before);
        }
        fits
    }

    /// How long they are, as text.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Whether no further one is put in.
    pub fn is_full(&self) -> bool {
        is_full(self.bytes())
    }

    fn into_parts(mut self) -> (String, Share) {
        self.text.push(']');
        (self.text, self.share)
    }
}

/// Whether so many bytes of text are all that an answer gets.
pub fn is_full(bytes: usize) -> bool {
    let full = bytes >= ANSWER_BYTES.size() && !planted!("dynamo.answers-without-end");
    if full {
        ANSWER_BYTES.cross();
    }
    full
}

/// What is said where others have all memory.
pub fn no_memory() -> Fault {
    let why = "Other clients have all memory for now: come again in a moment";
    Fault::new(Type::ServiceUnavailable, why)
}

/// Whether there was memory.
pub fn room(is_there: bool) -> Result<()> {
    if is_there { Ok(()) } else { Err(no_memory()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::to_item;
    use serde_json::json;

    fn item(json: Json) -> Item {
        to_item(&json).unwrap().checked().unwrap()
    }

    #[test]
    fn an_answer_is_one_document_and_counts_while_it_is_there() {
        let budget = Budget::new(0);
        let mut answer = Answer::of(&budget, json!({"Count": 2, "A\"b": [null]}));
        let mut items = Items::new(&budget);
        let (one, other) = (json!({"a": {"S": "é\"\u{1}"}}), json!({"b": {"L": [{"N": "1"}]}}));
        assert!(items.push(&item(one.clone())) && items.push(&item(other.clone())));
        answer.put_items("Items", items);
        let mut found = Items::new(&budget);
        assert!(
            found.push_within("Item", None) && found.push_within("Item", Some(&item(one.clone())))
        );
        answer.put_items("Responses", found);
        answer
            .put_items_by_name("Of", vec![("t", Items::new(&budget)), ("s", Items::new(&budget))]);
        answer.put_item("Item", &item(other.clone()));
        assert!(budget.used() > 50);
        let (text, share) = answer.finish();
        let expected = json!({
            "Count": 2, "A\"b": [null], "Items": [one, other], "Responses": [{}, {"Item": one}],
            "Of": {"s": [], "t": []}, "Item": other
        });
        assert_eq!(text, expected.to_string());
        assert_eq!(budget.used(), text.len() as u64);
        drop(share);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn an_item_for_which_there_is_no_memory_is_not_there() {
        let budget = Budget::new(0);
        let large = item(json!({"a": {"S": "x".repeat(1 << 20)}}));
        let mut items = Items::new(&budget);
        assert!(items.push(&large));
        let others = budget.hold(budget.limit() - budget.used() - 100_000);
        assert!(!items.push(&large) && items.push(&item(json!({}))));
        drop(others);
        let bytes = items.bytes();
        let mut answer = Answer::new(&budget);
        answer.put_items("Items", items);
        let document: Json = serde_json::from_str(&answer.finish().0).unwrap();
        assert_eq!(document["Items"].as_array().map(Vec::len), Some(2));
        assert!(bytes < (1 << 20) + 50);
    }
}
