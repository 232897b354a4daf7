//! What a client with rules may ask of files: which paths each request is about, and whether the
//! rules cover them. Rules speak of paths, requests of files and chunks too: both are looked up as
//! the names are now, so a file's rights are those of where it lies.
//!
//! Only reads follow links, and what they lead to must be covered as well; so must everything above
//! all for whoever makes or moves a link.

use crate::given::Given;
use crate::reads::{lookup_of, over_links};
use holdfast_base::ids::{ChunkId, FileId, Pointer};
use holdfast_base::node::NodeKind;
use holdfast_base::rules::{Access, Rules};
use holdfast_base::{Error, Result};
use holdfast_cluster::{AllShards, ChunkKind, Location};
use holdfast_env::planted;
use holdfast_server::{Within, beyond_rules, decoded};
use holdfast_wire::{self as wire, Call, chunk, file as msg};

/// Whether the client's rules allow the request with this meta.
pub(crate) fn check(
    all: &AllShards<'_>,
    given: &Given,
    opcode: u16,
    meta: &[u8],
    within: &Within,
) -> Result<()> {
    let rules = &within.rules;
    let asked = Asked { all, rules };
    let session = |call: Call| given.check_session(call.session, &within.client);
    match opcode {
        wire::OP_LOOKUP => {
            let (path, follow) = lookup_of(meta)?;
            asked.found(path, follow)
        }
        wire::OP_GET => {
            let get: msg::Get = decoded(meta, "get")?;
            asked.found(&get.path, get.follow)
        }
        wire::OP_LIST => asked.found(&decoded::<msg::List>(meta, "list")?.path, true),
        wire::OP_USAGE => asked.found(&decoded::<String>(meta, "du")?, true),
        wire::OP_UNCLOSED => rules.check_path("/", Access::Read),
        wire::OP_EXTENTS => {
            let of: msg::ExtentsOf = decoded(meta, "list extents")?;
            asked.file(of.file, Access::Read)
        }
        wire::OP_CHUNK_READ | wire::OP_CHUNK_LOCATE => {
            let read: chunk::Read = decoded(meta, "read")?;
            asked.chunk(read.chunk, Access::Read)
        }
        wire::OP_CHUNK_READ_OBJECT => {
            let read: chunk::ReadObject = decoded(meta, "read an object")?;
            asked.file(read.file, Access::Read)?;
            asked.object(read.file, read.pointer)
        }
        wire::OP_CHUNK_APPEND => {
            asked.chunk(decoded::<chunk::Append>(meta, "append")?.chunk, Access::Write)
        }
        wire::OP_PUT => {
            let put: msg::Put = decoded(meta, "put")?;
            asked.written(&put.node.path)?;
            session(put.call)
        }
        wire::OP_BEGIN => {
            let begin: msg::Begin = decoded(meta, "begin a file")?;
            asked.written(&begin.node.path)?;
            session(begin.call)
        }
        wire::OP_REMAINDER => {
            let remainder: msg::Remainder = decoded(meta, "store a remainder")?;
            asked.file(remainder.file, Access::Write)
        }
        wire::OP_ALLOCATE => {
            let allocate: msg::Allocate = decoded(meta, "allocate a chunk")?;
            asked.file(allocate.file, Access::Write)?;
            session(allocate.call)
        }
        wire::OP_CLOSE => {
            let close: msg::Close = decoded(meta, "close a file")?;
            asked.file(close.file, Access::Write)?;
            asked.written(&close.node.path)?;
            for extent in &close.extents {
                match *extent {
                    msg::Extent::Raw { chunk, .. } => asked.chunk(chunk, Access::Write)?,
                    msg::Extent::Packed { pointer, .. } => given.check_end(close.file, pointer)?,
                }
            }
            session(close.call)
        }
        wire::OP_CHANGE => {
            let change: msg::Change = decoded(meta, "change a name")?;
            asked.change(&change.action)?;
            session(change.call)
        }
        wire::OP_END_SESSION => {
            given.check_session(decoded(meta, "end a session")?, &within.client)
        }
        _ => Err(beyond_rules()),
    }
}

/// What a request is held against.
struct Asked<'a> {
    all: &'a AllShards<'a>,
    rules: &'a Rules,
}

impl Asked<'_> {
    fn path(&self, path: &str, access: Access) -> Result<()> {
        let doing = |e: Error| e.context(format_args!("use `{}`", path.escape_debug()));
        self.rules.check_path(path, access).map_err(doing)
    }

    fn written(&self, path: &str) -> Result<()> {
        self.path(path, Access::Write)
    }

    /// A path that is read, which may lead over links. What does not exist is for the request itself
    /// to say.
    fn found(&self, path: &str, follow: bool) -> Result<()> {
        self.path(path, Access::Read)?;
        if planted!("file.links-lead-out") {
            return Ok(());
        }
        let found = match follow {
            true => self.all.resolve(path).ok().map(|(found, _)| found),
            false => over_links(self.all, path),
        };
        // Not where it leads: that is told to nobody who may not go there.
        let beyond = |_| {
            Error::denied(format!(
                "use `{}`: a link on the way leads where this client may not go: ask whoever looks after the cluster",
                path.escape_debug()
            ))
        };
        found.map_or(Ok(()), |found| self.rules.check_path(&found, Access::Read).map_err(beyond))
    }

    /// The file that a client was told of: has its place among the names, now.
    fn file(&self, file: FileId, access: Access) -> Result<()> {
        let path = self.all.of_file(file)?.path_or_begun(file).ok_or_else(|| {
            Error::not_found(format!(
                "use file `{file}`: it was deleted or replaced, or never closed: open it again"
            ))
        })?;
        // Not its path: ids are easy to guess.
        self.rules.check_path(&path, access).map_err(|_| {
            Error::denied(format!(
                "use file `{file}`: it lies where this client may not do this: ask whoever looks after the cluster"
            ))
        })
    }

    /// Bytes of one file alone lie in a raw chunk, and of many in a packed one.
    fn chunk(&self, chunk: ChunkId, access: Access) -> Result<()> {
        let known = self.all.chunk(chunk)?.ok_or_else(|| {
            Error::not_found(format!("use chunk `{chunk}`: it was deleted: open its file again"))
        })?;
        match known.kind {
            ChunkKind::Raw => self.file(self.all.owner_of(known), access),
            ChunkKind::Packed => Err(beyond_rules()),
        }
    }

    /// Whether an object is the file's: its content, or the end of it.
    fn object(&self, file: FileId, pointer: Pointer) -> Result<()> {
        let view = self.all.of_file(file)?;
        let whole = view.info(file).map(|info| info.location);
        let end = view.extents(file).and_then(|(_, remainder)| remainder);
        let is_its = whole == Some(Location::Packed { pointer })
            || end.is_some_and(|end| end.pointer == pointer);
        if is_its || planted!("file.any-object-of-a-file") {
            return Ok(());
        }
        Err(Error::not_found(format!(
            "read an object of file `{file}`: its bytes lie elsewhere by now: open it again"
        )))
    }

    fn change(&self, action: &msg::Action) -> Result<()> {
        match action {
            msg::Action::Make { node } => self.written(&node.path),
            // It may lead anywhere.
            msg::Action::Symlink { path, .. } => {
                self.written(path)?;
                self.written("/")
            }
            msg::Action::Rename { from, to, .. } => {
                self.written(from)?;
                self.written(to)?;
                // Where a link leads may depend on where it is.
                let moved = self.all.lookup(from)?;
                match moved.is_some_and(|moved| moved.kind == NodeKind::Symlink) {
                    true => self.written("/"),
                    false => Ok(()),
                }
            }
            msg::Action::Delete { path, .. }
            | msg::Action::SetAttributes { path, .. }
            | msg::Action::SetClass { path, .. } => self.written(path),
            msg::Action::Abandon { file } => self.file(*file, Access::Write),
            msg::Action::Salvage { file, path } => {
                self.file(*file, Access::Write)?;
                self.written(path)
            }
            msg::Action::Seal { chunk, .. } => self.chunk(*chunk, Access::Write),
        }
    }
}
