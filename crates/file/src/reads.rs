//! Requests that read names: answered under the namespace's shared lock.

use crate::face::{Answer, FileFace};
use holdfast_base::codec::{Decode, Encode, Reader};
use holdfast_base::ids::Generation;
use holdfast_base::limits::{FRAME_META_BYTES_MAX, LIST_PAGE_MAX};
use holdfast_base::node::NodeKind;
use holdfast_base::{Error, Result, path};
use holdfast_cluster::{AllShards, FileInfo, Location, Namespace};
use holdfast_env::net::{Batch, Parts};
use holdfast_server::decoded;
use holdfast_wire::{self as wire, file as msg};
use std::ops::Range;

/// Extents of one answer.
const EXTENTS_PAGE: usize = 1024;
/// Names that are looked up together.
const LOOKUP_RUN: usize = 16;
/// A page of a listing ends here, well before the frame does.
const PAGE_BYTES: usize = FRAME_META_BYTES_MAX as usize * 3 / 4;

/// Where a path leads, links on the way followed, but not one in the last place; none for the root.
pub(crate) fn over_links(all: &AllShards<'_>, path: &str) -> Option<String> {
    let (parent, name) = path::split(path)?;
    let (parent, _) = all.resolve(parent).ok()?;
    Some(format!("{}/{name}", parent.trim_end_matches('/')))
}

/// The node at a path, links on the way followed, and the last one too if asked.
pub(crate) fn find(all: &AllShards<'_>, path: &str, follow: bool) -> Result<FileInfo> {
    // The common case names no link anywhere.
    if let Some(info) = all.lookup(path)?
        && !(follow && info.kind == NodeKind::Symlink)
    {
        return Ok(info);
    }
    if follow {
        return all.resolve(path).map(|(_, info)| info);
    }
    path::check(path)?;
    let found = match over_links(all, path) {
        Some(path) => all.lookup(&path)?,
        None => None,
    };
    found.ok_or_else(|| {
        Error::not_found(format!(
            "look up `{}`: it does not exist: check the path",
            path.escape_debug()
        ))
    })
}

pub(crate) fn wire_info(all: &AllShards<'_>, info: &FileInfo) -> msg::FileInfo {
    // It is there: what is known of the file came from it.
    let target = || all.of_file(info.id).ok()?.link_target(info.id).map(str::to_owned);
    let metadata = || all.of_file(info.id).ok()?.metadata(info.id).map(<[u8]>::to_vec);
    msg::FileInfo {
        id: info.id,
        kind: info.kind,
        mode: info.mode,
        mtime_ns: info.mtime,
        size: info.size,
        class: info.class,
        target: match info.kind {
            NodeKind::Symlink => target().unwrap_or_default(),
            _ => String::new(),
        },
        metadata: match info.has_metadata {
            true => metadata().unwrap_or_default(),
            false => Vec::new(),
        },
    }
}

/// Borrowed, because look-ups come by the million.
pub(crate) fn lookup_of(meta: &[u8]) -> Result<(&str, bool)> {
    let mut reader = Reader::new(meta);
    Ok((reader.str()?, Decode::decode(&mut reader)?))
}

fn now(message: &impl Encode) -> Result<Answer> {
    Ok(Answer::Now(message.to_bytes(), Parts::None))
}

impl FileFace {
    /// Answers the look-ups that these requests begin with, and says where their run ends.
    pub(crate) fn lookup_run(
        &self,
        all: &AllShards<'_>,
        batch: &mut Batch<'_>,
        requests: Range<usize>,
    ) -> usize {
        let first = requests.start;
        let mut found = [None; LOOKUP_RUN];
        let mut paths = [""; LOOKUP_RUN];
        let mut count = 0;
        while count < LOOKUP_RUN
            && first + count < requests.end
            && batch.header(first + count).opcode == wire::OP_LOOKUP
        {
            // What is not a request is refused below.
            paths[count] = lookup_of(batch.meta(first + count)).map_or("", |(path, _)| path);
            count += 1;
        }
        all.lookup_batch(&paths[..count], &mut found[..count]);
        for (i, found) in (first..).zip(&found[..count]) {
            let info = match found {
                Some(info) if info.kind != NodeKind::Symlink => Ok(*info),
                _ => lookup_of(batch.meta(i)).and_then(|(path, follow)| find(all, path, follow)),
            };
            match info {
                Ok(info) => batch.reply(i, |out| wire_info(all, &info).encode(out), Parts::None),
                Err(e) => batch.reply_error(i, &e),
            }
        }
        first + count
    }

    pub(crate) fn list(&self, all: &AllShards<'_>, meta: &[u8]) -> Result<Answer> {
        let list: msg::List = decoded(meta, "list")?;
        let (path, _) = all.resolve(&list.path)?;
        let after = Some(list.after.as_str()).filter(|after| !after.is_empty());
        let limit = (list.entries_max as usize).clamp(1, LIST_PAGE_MAX);
        let page = all.list(&path, after, limit)?;
        let mut entries = Vec::with_capacity(page.entries.len());
        let mut bytes = 0;
        let count = page.entries.len();
        for entry in page.entries {
            let info = wire_info(all, &entry.info);
            bytes += entry.name.len() + info.target.len() + info.metadata.len() + 64;
            entries.push(msg::Named { name: entry.name, info });
            if bytes > PAGE_BYTES {
                break;
            }
        }
        let more = page.more || entries.len() < count;
        now(&msg::Page { entries, more })
    }

    pub(crate) fn usage(&self, all: &AllShards<'_>, meta: &[u8]) -> Result<Answer> {
        let path: String = decoded(meta, "du")?;
        let (path, _) = all.resolve(&path)?;
        let usage = all.usage(&path)?;
        now(&msg::Usage { files: usage.files, directories: usage.directories, bytes: usage.bytes })
    }

    pub(crate) fn extents(&self, all: &AllShards<'_>, meta: &[u8]) -> Result<Answer> {
        let of: msg::ExtentsOf = decoded(meta, "list extents")?;
        let view = all.of_file(of.file)?;
        if view.extents(of.file).is_none() {
            return Err(Error::not_found(format!(
                "list extents of file `{}`: it was deleted or replaced; open it again",
                of.file
            )));
        }
        let (extents, _) = extents_page(view, of.file, of.from as usize, EXTENTS_PAGE);
        now(&extents)
    }

    pub(crate) fn unclosed(&self, all: &AllShards<'_>) -> Result<Answer> {
        let files: Vec<msg::Unclosed> = all
            .iter()
            .flat_map(Namespace::unclosed)
            .take(LIST_PAGE_MAX)
            .map(|file| msg::Unclosed {
                file: file.file,
                path: file.path,
                bytes: file.chunks.iter().map(|chunk| self.chunk_length(all, *chunk)).sum(),
            })
            .collect();
        now(&files)
    }

    /// Acknowledged bytes of a chunk: the seal's word, or what this node knows while it is open.
    pub(crate) fn chunk_length(
        &self,
        all: &AllShards<'_>,
        chunk: holdfast_base::ids::ChunkId,
    ) -> u64 {
        let known = all.chunk(chunk).ok().flatten();
        known.map_or(0, |known| self.node.chunk_length(known))
    }

    /// A small file's bytes if they are in memory, a large one's extents.
    pub(crate) fn get(&self, all: &AllShards<'_>, meta: &[u8]) -> Result<Answer> {
        let get: msg::Get = decoded(meta, "get")?;
        let info = find(all, &get.path, get.follow)?;
        let reply = |content| msg::GetReply { info: wire_info(all, &info), content };
        if info.kind == NodeKind::MultiFile {
            // A bag of files: its reader lists them and gets each.
            return now(&reply(msg::Content::Chunks { extents: Vec::new(), more: false }));
        }
        if info.kind.is_container() {
            return Err(Error::invalid(format!(
                "get `{}`: it is a {}, not a file; list it",
                get.path.escape_debug(),
                info.kind.name()
            )));
        }
        match info.location {
            Location::Inline {} => now(&reply(msg::Content::Body { crc: 0 })),
            Location::Packed { pointer } if info.size <= get.bytes_max as u64 => {
                let Some(store) = self.store_of(all, pointer.chunk)? else {
                    return Ok(Answer::Later(info.size));
                };
                let Some(read) = store.try_read_needle(pointer) else {
                    return Ok(Answer::Later(info.size));
                };
                let read = read.map_err(|e| e.context(format_args!("get `{}`", get.path)))?;
                let (content, parts) = self.small_content(&get, &info, read);
                Ok(Answer::Now(reply(content).to_bytes(), parts))
            }
            Location::Packed { pointer } => {
                let extents = vec![msg::Extent::Packed { pointer, bytes: info.size }];
                now(&reply(msg::Content::Chunks { extents, more: false }))
            }
            Location::Extents {} => {
                let (extents, more) = extents_page(all.of_file(info.id)?, info.id, 0, EXTENTS_PAGE);
                now(&reply(msg::Content::Chunks { extents, more }))
            }
        }
    }
}

/// Up to `count` extents of a file from the `from`th on, and whether more follow.
fn extents_page(
    view: &Namespace,
    file: holdfast_base::ids::FileId,
    from: usize,
    count: usize,
) -> (Vec<msg::Extent>, bool) {
    let Some((extents, remainder)) = view.extents(file) else { return (Vec::new(), false) };
    let raw = extents.iter().map(|extent| msg::Extent::Raw {
        chunk: extent.chunk,
        // Raw chunks are never rewritten.
        generation: Generation(0),
        bytes: extent.length,
    });
    let last = remainder.map(|r| msg::Extent::Packed { pointer: r.pointer, bytes: r.length });
    let total = extents.len() + last.is_some() as usize;
    let page: Vec<_> = raw.chain(last).skip(from).take(count).collect();
    let more = from + page.len() < total;
    (page, more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::ids::{Durability, FileId, Index, NodeId, StoreId, Tier};
    use holdfast_cluster::{ChunkKind, Command, Outcome, RawExtent};

    /// A view with one closed file of `chunks` chunks of one byte each.
    fn view_with(chunks: usize) -> (Namespace, FileId) {
        let mut view = Namespace::default();
        let mut index = 0;
        let mut apply = |command: Command| {
            index += 1;
            view.apply(Index(index), &command).unwrap()
        };
        let path = "/f".to_owned();
        let begin = Command::Begin { path: path.clone(), class: None, mode: 0o644, mtime: 1 };
        let Outcome::File { file } = apply(begin) else { panic!("a file") };
        let mut extents = Vec::new();
        for _ in 0..chunks {
            let allocated = apply(Command::AllocateChunk {
                kind: ChunkKind::Raw,
                owner: file,
                node: NodeId(1),
                replicas: vec![StoreId(1)],
                tier: Tier::Disk,
                durability: Durability::Durable,
            });
            let Outcome::Chunk { chunk } = allocated else { panic!("a chunk") };
            apply(Command::SealChunk { chunk, length: 1, replicas: vec![StoreId(1)] });
            extents.push(RawExtent { chunk, length: 1 });
        }
        apply(Command::Close {
            file,
            path,
            size: chunks as u64,
            crc: None,
            extents,
            remainder: None,
            mode: 0o644,
            mtime: 1,
            replace: false,
            metadata: Vec::new(),
        });
        (view, file)
    }

    #[test]
    fn pages_of_extents_make_the_whole_list_and_the_last_one_says_so() {
        let (view, file) = view_with(10);
        let (all, more) = extents_page(&view, file, 0, 100);
        assert_eq!((all.len(), more), (10, false));
        let mut paged = Vec::new();
        loop {
            let (page, more) = extents_page(&view, file, paged.len(), 3);
            assert!(!page.is_empty());
            paged.extend(page);
            assert_eq!(more, paged.len() < 10);
            if !more {
                break;
            }
        }
        assert_eq!(paged, all);
        assert_eq!(extents_page(&view, file, 10, 3), (Vec::new(), false));
    }
}
