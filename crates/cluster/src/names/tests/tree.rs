//! Names alone against a plain model: any commands about few paths, and behind each of them every
//! answer that `Names` gives of them.
//!
//! What is held against what: the model (`model.rs`) is a map from paths to what was put there, and
//! says what docs/formats/namespace.md and the docstrings of `Command` promise. Of chunks there is
//! the least that names can ask: one packed chunk that stays open, and raw ones that are sealed as
//! soon as they are drawn. Everything that was freed is released at once, so that the slots and raw
//! chunks that are left are those that names have told of and not freed.

use super::super::{Names, Usage};
use super::model::{Bytes, Model, PACKED_BYTES};
use crate::chunks::{ChunkState, Chunks};
use crate::names::children::BLOCK_MAX;
use crate::namespace::{STEPS_MAX, VERSION_BEFORE_ATTEMPTS};
use crate::{ChunkKind, Command, Location, NodeKind, Outcome, RawExtent, Remainder, StorageClass};
use holdfast_base::Result;
use holdfast_base::ids::{ChunkId, Cookie, Durability, FileId, Index, Pointer, Slot, Tier};
use holdfast_base::stream::{collect, read_all};
use holdfast_env::trial::Trial;
use proptest::prelude::*;
use std::collections::BTreeSet;

const PACKED: ChunkId = ChunkId(1);
const RAW_BYTES: u64 = 3;

#[derive(Clone, Debug)]
enum Step {
    Do(Command),
    /// As the one of the files that were begun, which is the `nth` of them: given a chunk, closed
    /// with all of its chunks but so many, salvaged, abandoned.
    Give {
        nth: usize,
    },
    Close {
        nth: usize,
        path: String,
        but: usize,
        slot: Option<u32>,
        wrong: u64,
        replace: bool,
    },
    Salvage {
        nth: usize,
        path: String,
        but: usize,
    },
    Abandon {
        nth: usize,
    },
}

fn pointer(slot: u32) -> Pointer {
    Pointer { chunk: PACKED, slot: Slot(slot), cookie: Cookie(slot + 9) }
}

/// Few names, more than a small block of children holds, one of them too long for its node.
fn path() -> impl Strategy<Value = String> {
    let names = ["a", "b", "c", "d", "e", "f", "a-name-that-is-too-long-for-a-node"];
    let name = prop::sample::select(names.to_vec());
    let depth =
        prop_oneof![1 => Just(0..1usize), 12 => Just(1..2), 8 => Just(2..3), 3 => Just(3..5)];
    let deep = depth.prop_flat_map(move |depth| prop::collection::vec(name.clone(), depth));
    deep.prop_map(|names| format!("/{}", names.join("/")))
}

fn class() -> impl Strategy<Value = Option<StorageClass>> {
    let dram = StorageClass::new(&[Tier::Dram], Durability::Memory).unwrap();
    prop_oneof![2 => Just(None), 1 => Just(Some(dram))]
}

fn command() -> impl Strategy<Value = Command> {
    use NodeKind::*;
    let container =
        prop::sample::select(vec![Directory, Directory, Directory, Table, MultiFile, File]);
    let data = prop::sample::select(vec![File, File, KeyValue, Symlink]);
    let mode = || prop::sample::select(vec![0o644u16, 0o400, 0o7777, 0o10000]);
    let metadata = || prop::collection::vec(any::<u8>(), 0..3);
    let target = prop::sample::select(vec!["/a", "b", "../c", "", "/a/b"]);
    prop_oneof![
        6 => (path(), container, mode(), class(), any::<bool>()).prop_map(
            |(path, kind, mode, class, parents)| Command::MakeDir {
                path, kind, mode, mtime: 3, class, parents
            }),
        8 => (path(), data, mode(), class(), 0..60u32, any::<[bool; 2]>(), metadata()).prop_map(
            |(path, kind, mode, class, slot, [replace, parents], metadata)| {
                let packed = !slot.is_multiple_of(5);
                let location = match packed {
                    true => Location::Packed { pointer: pointer(slot) },
                    false => Location::Inline {},
                };
                let size = if packed != (slot == 55) { PACKED_BYTES } else { 0 };
                Command::Put {
                    path, kind, mode, mtime: 4, size, crc: slot, class, location, replace, parents,
                    metadata,
                }
            }),
        1 => (path(), target).prop_map(|(path, target)| {
            Command::Symlink { path, target: target.to_owned(), mtime: 5 }
        }),
        2 => (path(), class(), mode()).prop_map(|(path, class, mode)| {
            Command::Begin { path, class, mode, mtime: 6 }
        }),
        5 => (path(), path(), any::<bool>())
            .prop_map(|(from, to, replace)| Command::Rename { from, to, replace }),
        4 => (path(), any::<bool>()).prop_map(|(path, recursive)| Command::Delete { path, recursive }),
        2 => (0..4u32).prop_map(|budget| Command::Reclaim { budget }),
        1 => (path(), prop::option::of(mode()), prop::option::of(7..9i64),
              prop::option::of(metadata())).prop_map(|(path, mode, mtime, metadata)| {
            Command::SetAttributes { path, mode, mtime, metadata }
        }),
        1 => (path(), class()).prop_map(|(path, class)| {
            Command::SetClass { path, class: class.unwrap_or(StorageClass::DEFAULT) }
        }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let nth = 0..3usize;
    let slot = prop::option::of(0..60u32);
    let wrong = prop_oneof![9 => Just(0u64), 1 => Just(1)];
    prop_oneof![
        30 => command().prop_map(Step::Do),
        4 => nth.clone().prop_map(|nth| Step::Give { nth }),
        4 => (nth.clone(), path(), 0..2usize, slot, wrong, any::<bool>()).prop_map(
            |(nth, path, but, slot, wrong, replace)| Step::Close { nth, path, but, slot, wrong, replace }
        ),
        1 => (nth.clone(), path(), 0..2usize)
            .prop_map(|(nth, path, but)| Step::Salvage { nth, path, but }),
        1 => nth.prop_map(|nth| Step::Abandon { nth }),
    ]
}

struct World {
    names: Names,
    chunks: Chunks,
    model: Model,
    index: u64,
}

impl World {
    fn new() -> World {
        let mut chunks = Chunks::new(0);
        assert_eq!(chunks.draw_packed(), PACKED);
        World { names: Names::new(0), chunks, model: Model::new(), index: 0 }
    }

    fn apply(&mut self, command: &Command) -> Result<Outcome> {
        let (names, chunks, index) = (&mut self.names, &mut self.chunks, Index(self.index));
        match command {
            Command::MakeDir { .. } => names.make_dir(chunks, command),
            Command::Put { .. } => names.put(chunks, index, command),
            Command::Symlink { path, target, mtime } => names.symlink(chunks, path, target, *mtime),
            Command::Begin { path, class, mode, mtime } => names.begin(path, *class, *mode, *mtime),
            Command::Close { .. } => names.close(chunks, index, command),
            Command::Abandon { file } => names.abandon(chunks, index, *file),
            Command::Salvage { file, path, extents } => {
                names.salvage(chunks, index, *file, path, extents)
            }
            Command::Rename { from, to, replace } => {
                names.rename(chunks, index, from, to, *replace)
            }
            Command::Delete { path, recursive } => names.delete(chunks, index, path, *recursive),
            Command::Reclaim { budget } => Ok(names.reclaim(chunks, index, *budget)),
            Command::SetAttributes { path, mode, mtime, metadata } => {
                names.set_attributes(path, *mode, *mtime, metadata.as_deref())
            }
            Command::SetClass { path, class } => names.set_class(path, *class),
            other => panic!("{other:?} is none of names"),
        }
    }

    fn step(&mut self, step: &Step) {
        self.index += 1;
        let Some(command) = self.command(step) else { return };
        let answer = self.apply(&command);
        let expected = self.model.apply(&command, answer.as_ref().ok());
        assert_eq!(answer.is_ok(), expected, "{command:?}: {answer:?}");
        if let (Ok(Outcome::Progress { steps, more }), Command::Reclaim { budget }) =
            (&answer, &command)
        {
            assert_eq!(*more, self.names.needs_reclaim());
            assert!(*steps as u64 <= STEPS_MAX.get().min(*budget as u64));
            assert!(!*more || *steps as u64 == STEPS_MAX.get().min(*budget as u64));
        }
        let id = |path: &str| self.names.lookup(&self.chunks, path).map(|info| info.id);
        self.model.learn_ids(id);
        while self.chunks.freed().0 > 0 {
            self.chunks.release(Index(self.index + 1), u32::MAX);
        }
        self.is_as_the_model(matches!(command, Command::Reclaim { .. }));
    }

    /// What a step says of the files that are begun; `None` when there are none.
    fn command(&mut self, step: &Step) -> Option<Command> {
        let (Step::Give { nth }
        | Step::Close { nth, .. }
        | Step::Salvage { nth, .. }
        | Step::Abandon { nth }) = step
        else {
            let Step::Do(command) = step else { unreachable!() };
            return Some(command.clone());
        };
        let begun: Vec<FileId> = self.model.unclosed.keys().copied().collect();
        let file = *begun.get(nth % begun.len().max(1))?;
        let extents = |but: usize| -> Vec<RawExtent> {
            let own = self.model.unclosed[&file].1.iter().skip(but);
            own.map(|chunk| RawExtent { chunk: *chunk, length: RAW_BYTES }).collect()
        };
        Some(match step {
            Step::Give { .. } => {
                let at = self.names.find_unclosed(file).unwrap();
                let chunk = self.chunks.draw_sealed(file, RAW_BYTES);
                self.names.give_chunk(at, chunk);
                self.model.unclosed.get_mut(&file).unwrap().1.push(chunk);
                return None;
            }
            Step::Close { path, but, slot, wrong, replace, .. } => {
                let extents = extents(*but);
                let remainder =
                    slot.map(|slot| Remainder { pointer: pointer(slot), length: PACKED_BYTES });
                let size = extents.len() as u64 * RAW_BYTES + remainder.map_or(0, |r| r.length);
                Command::Close {
                    file,
                    path: path.clone(),
                    size: size + wrong,
                    crc: slot.map(|slot| slot + 1),
                    extents,
                    remainder,
                    mode: 0o600,
                    mtime: 8,
                    replace: *replace,
                    metadata: vec![1; *but],
                }
            }
            Step::Salvage { path, but, .. } => {
                Command::Salvage { file, path: path.clone(), extents: extents(*but) }
            }
            _ => Command::Abandon { file },
        })
    }

    fn is_as_the_model(&mut self, reclaimed: bool) {
        self.model.held_by_names_is(self.held(), reclaimed);
        let all = self.names.usage("/").unwrap();
        assert_eq!(all, self.model.usage("/"));
        let totals = self.names.totals();
        let waiting = Usage {
            files: totals.files - all.files,
            directories: totals.directories - all.directories,
            symlinks: totals.symlinks - all.symlinks,
            bytes: totals.bytes - all.bytes,
        };
        if waiting == Usage::default() {
            // Who is gone leaves no entry behind; the root has none.
            assert_eq!(self.names.table.len(), self.model.nodes.len() - 1);
        }
        self.model.waiting_is(waiting, self.names.needs_reclaim(), reclaimed);
        let paths: Vec<&str> = self.model.nodes.keys().map(String::as_str).collect();
        let mut infos = vec![None; paths.len() + 2];
        let asked = [&paths[..], &["/g", "/a/g/g"]].concat();
        self.names.lookup_batch(&self.chunks, &asked, &mut infos);
        for (path, info) in asked.iter().zip(&infos) {
            assert_eq!(self.names.lookup(&self.chunks, path), *info, "{path}");
            let Some(node) = self.model.nodes.get(*path) else {
                assert_eq!(*info, None, "{path}");
                continue;
            };
            let info = info.unwrap_or_else(|| panic!("{path} is gone"));
            self.model.is_told_by(path, &info);
            assert_eq!(self.names.info(&self.chunks, node.id), Some(info));
            assert_eq!(self.names.path_of(node.id).as_deref(), Some(*path));
            assert_eq!(self.names.metadata(node.id), Some(&node.metadata[..]));
            let target = self.names.link_target(node.id);
            let extents = self.names.extents(node.id);
            match &node.bytes {
                Bytes::Link(to) => assert_eq!((target, extents), (Some(&to[..]), None)),
                Bytes::Many(list, last) => {
                    assert_eq!((target, extents), (None, Some((&list[..], *last))));
                }
                Bytes::None | Bytes::Packed(_) => assert_eq!((target, extents), (None, None)),
            }
            self.lists_as_the_model(path, node.kind);
        }
        for gone in &self.model.gone {
            assert_eq!(self.names.info(&self.chunks, *gone), None, "{gone}");
            assert_eq!(self.names.path_of(*gone), None, "{gone}");
        }
        let unclosed = self.names.unclosed().into_iter();
        let unclosed: BTreeSet<_> = unclosed.map(|u| (u.file, (u.path, u.chunks))).collect();
        assert!(unclosed.into_iter().eq(self.model.unclosed.clone()));
    }

    fn lists_as_the_model(&self, path: &str, kind: NodeKind) {
        let whole = self.names.list(&self.chunks, path, None, 100);
        assert_eq!(whole.is_ok(), kind.is_container(), "{path}");
        let Ok(whole) = whole else { return };
        let expected = self.model.children(path);
        let names = |page: &super::super::Page| {
            page.entries.iter().map(|entry| entry.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!((names(&whole), whole.more), (expected.clone(), false), "{path}");
        let (mut paged, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = self.names.list(&self.chunks, path, after.as_deref(), 2).unwrap();
            assert!(page.entries.len() == 2 || !page.more);
            paged.extend(names(&page));
            after = paged.last().cloned();
            if !page.more {
                break;
            }
        }
        assert_eq!(paged, expected, "{path} by twos");
    }

    /// Slots and raw chunks that names have told of and not freed.
    fn held(&self) -> BTreeSet<(ChunkId, u32)> {
        let slots = self.chunks.live_slots(PACKED).unwrap().into_iter();
        let raw = self.chunks.iter().filter(|chunk| chunk.kind == ChunkKind::Raw);
        let raw = raw.filter(|chunk| chunk.state != ChunkState::Doomed).map(|chunk| (chunk.id, 0));
        slots.map(|slot| (PACKED, slot.0)).chain(raw).collect()
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        collect(&mut bytes, |out| {
            self.chunks.write(out);
            self.names.write(&self.chunks, out);
            self.names.write_detached(out);
        });
        bytes
    }

    /// The same names from their bytes.
    fn restored(self) -> World {
        let bytes = self.bytes();
        let (names, chunks) = read_all(&bytes, |source| {
            let mut chunks = Chunks::read(VERSION_BEFORE_ATTEMPTS + 1, source)?;
            let mut names = Names::hollow(0);
            names.read(&mut chunks, source)?;
            names.restore_detached(source.get()?)?;
            names.restore_tree()?;
            names.take_chunks(&chunks)?;
            Ok((names, chunks))
        })
        .unwrap();
        let mut world = World { names, chunks, ..self };
        assert_eq!(world.bytes(), bytes);
        world.is_as_the_model(false);
        world
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Half of the runs go on with what was read from bytes behind each step.
    #[test]
    fn names_answer_as_a_plain_model(
        (full, steps_max, restores) in (4..7u64, 1..5u64, any::<bool>()),
        steps in prop::collection::vec(step(), 0..100),
    ) {
        let _trial = Trial::new().with(&BLOCK_MAX, full).with(&STEPS_MAX, steps_max).enter();
        let mut world = World::new();
        for step in &steps {
            world.step(step);
            if restores {
                world = world.restored();
            }
        }
        world.restored();
    }
}
