//! Finding keys by a value: from the part of an index, on this node, that has the value.

use super::{ANSWER_BYTES_MAX, Answer, KEYS_MAX, ViewFace, coded};
use crate::views::{KeptView, RunView, describe};
use holdfast_base::{Error, Result};
use holdfast_server::{Request, answer};
use holdfast_view::items::{Catalog, IndexView};
use holdfast_wire::slab::{INDEXED_BYTES_MAX, Range};
use holdfast_wire::view as msg;
use std::sync::Arc;

impl ViewFace {
    pub(super) fn find(self: Arc<Self>, request: Request<'_>) {
        let Some((find, reply)) = request.decode::<msg::Find>("find keys") else { return };
        self.with_topic(find.topic.clone(), reply, move |face, fold, reply| {
            let checked = fold.read(|view, _| check(view.catalog(), &find));
            if let Err(e) = checked.and_then(|checked| checked) {
                return answer(reply, Err(e));
            }
            let hash = IndexView::hash(&find.value);
            let is_one = |name: &msg::ViewName| match &name.kind {
                msg::ViewKind::Index { collection, field } => {
                    let asked = (collection, field) == (&find.collection, &find.field);
                    asked && Range::part(name.part, name.of).contains(hash)
                }
                _ => false,
            };
            let views = face.views.of(&find.topic);
            match views.iter().find(|view| is_one(&view.name)) {
                Some(view) => {
                    let reached = find.reached;
                    let read = move |view: &RunView| keys(view, &find);
                    face.once_reached(view.clone(), reached, reply, read);
                }
                None => {
                    let doing = format!("find keys of topic `{}`", find.topic);
                    let is_one = |name: &msg::ViewName| name.topic == find.topic && is_one(name);
                    let comes = face.views.comes(&doing, is_one);
                    answer(reply, Err(comes.unwrap_or_else(|| no_index(&find))));
                }
            }
        });
    }
}

fn check(catalog: &Catalog, find: &msg::Find) -> Result<()> {
    if find.value.len() > INDEXED_BYTES_MAX {
        return Err(Error::invalid(format!(
            "find keys by a value of {} bytes: values of more than {INDEXED_BYTES_MAX} are in no index",
            find.value.len()
        )));
    }
    match catalog.all().any(|(_, one)| one.name == find.collection) {
        true => Ok(()),
        false => Err(Error::not_found(format!(
            "find keys of topic `{}`: it has no collection `{}`: `holdfast view info` lists them",
            find.topic,
            find.collection.escape_debug()
        ))),
    }
}

fn no_index(find: &msg::Find) -> Error {
    let msg::Find { topic, collection, field, .. } = find;
    let (field, collection) = (field.escape_debug(), collection.escape_debug());
    Error::not_found(format!(
        "find keys of topic `{topic}`: this node runs no index of field `{field}` of collection \
         `{collection}` that has this value: `holdfast view status` says who does, `holdfast view run \
         index {topic} --collection {collection} --field {field}` runs one"
    ))
}

fn keys(view: &RunView, find: &msg::Find) -> Answer {
    let KeptView::Index { fold } = &view.kept else {
        return Err(Error::bug(format!("find keys in view `{}`", describe(&view.name))));
    };
    let keys_max = (find.keys_max as usize).clamp(1, KEYS_MAX);
    coded(fold.read(|view, applied| {
        let mut found = view.find(&find.value, find.after.as_deref()).peekable();
        let (mut keys, mut bytes) = (Vec::new(), 0);
        while keys.len() < keys_max
            && let Some((key, _)) = found.peek()
        {
            bytes += key.len();
            if !keys.is_empty() && bytes > ANSWER_BYTES_MAX {
                break;
            }
            keys.extend(found.next().map(|(key, index)| msg::Having { key: key.to_vec(), index }));
        }
        msg::Havings { applied, keys, more: found.peek().is_some() }
    }))
}
