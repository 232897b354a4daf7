//! Where a view is kept, and what is kept with it. A view in memory keeps nothing: snapshots and the
//! log bring it back. One in rows keeps every page of entries as one batch: what they changed, the
//! position, the digest, the epoch and the sessions, all or nothing.

use super::{Apart, Applied, View};
use crate::items::Indexed;
use holdfast_base::codec::{Decode, Encode, Reader, put_bytes};
use holdfast_base::ids::{Index, SessionId};
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Reason, Result, codec_struct};
use holdfast_env::planted;
use holdfast_env::rows::{Batch, Each, Moment, Rows};
use holdfast_env::trial::Knob;
use holdfast_wire::slab::Range;
use std::marker::PhantomData;
use std::sync::Arc;

/// What a view is made for.
#[derive(Clone)]
pub struct Context {
    /// Whose entries it folds.
    pub topic: String,
    /// Part of the namespace that the topic holds, from 0 on.
    pub shard: u16,
    /// The view's own name on its node, where a topic has several: what is kept of each is apart.
    pub name: String,
    /// Of keys' hashes, where the view keeps a part of its topic.
    pub range: Range,
    /// What it is an index of, if it is one.
    pub indexed: Option<Indexed>,
    /// Rows of its own, for a view that is kept in them.
    pub rows: Option<Arc<dyn Rows>>,
    /// Who is told of its marks.
    pub marked: Option<Marked>,
}

/// Takes a moment of the rows that shows them as a mark ([`RowsView::is_mark`]) has left them, and
/// nothing behind it. Called while the fold is held: it may keep the moment, and do nothing else.
pub type Marked = Arc<dyn Fn(Index, Arc<dyn Moment>) + Send + Sync>;

impl Context {
    /// The first shard's, the only one of its topic.
    pub fn of(topic: &str) -> Context {
        Context {
            topic: topic.to_owned(),
            shard: 0,
            name: topic.to_owned(),
            range: Range::ALL,
            indexed: None,
            rows: None,
            marked: None,
        }
    }

    /// The same, kept in these rows.
    pub fn in_rows(self, rows: Arc<dyn Rows>) -> Context {
        Context { rows: Some(rows), ..self }
    }
}

impl From<&str> for Context {
    fn from(topic: &str) -> Context {
        Context::of(topic)
    }
}

/// How far a view has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The last entry applied, its CRC32C, and the digest up to it.
    pub applied: Index,
    /// See `applied`.
    pub entry_crc: u32,
    /// See `applied`.
    pub digest: u64,
    /// The last claim.
    pub epoch: Index,
}
codec_struct!(Position { applied, entry_crc, digest, epoch });

/// Whose rows these are, and how far they have come.
struct Mark {
    view: String,
    version: u32,
    position: Position,
}
codec_struct!(Mark { view, version, position });

/// What was kept with a view: its position, and its sessions by id, as bytes.
pub type Kept = (Position, Vec<(SessionId, Vec<u8>)>);

/// What is to be kept with a view: its position, and the sessions that have changed; those that
/// have ended without bytes.
pub type Keeping = (Position, Vec<(SessionId, Option<Vec<u8>>)>);

/// A deterministic fold of one topic into rows. It holds nothing itself: readers have the rows, and
/// see each page of entries whole.
pub trait RowsView: Send + Sync + 'static {
    /// As [`View::NAME`] and [`View::VERSION`].
    const NAME: &'static str;
    /// As [`View::VERSION`].
    const VERSION: u32;
    /// As [`View::BARE`].
    const BARE: Option<u8> = None;

    /// As [`View::apply`]: reads `rows` as the entries before have left them, and puts into `changes`
    /// what an accepted command changes; a refused one changes nothing. Rows do not begin with byte 0
    /// or 255. An error says that rows cannot be read.
    fn apply(rows: &Page<'_>, index: Index, command: &[u8], changes: &mut Batch)
    -> Result<Applied>;

    /// Whether somebody wants a moment of the rows as this command leaves them ([`Marked`]).
    fn is_mark(_command: &[u8]) -> bool {
        false
    }

    /// As [`View::describe`].
    fn describe(command: &[u8]) -> String {
        format!("a command of {} bytes", command.len())
    }

    /// Writes what a moment shows of the view, and calls `goes_on` now and then: row after row where
    /// it has no better form for a snapshot.
    fn write(
        moment: &dyn Moment,
        out: &mut Writer<'_>,
        goes_on: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        write_rows(moment, out, goes_on)
    }

    /// The inverse of [`RowsView::write`]: hands over row after row.
    fn read(_context: &Context, source: &mut Source<'_>, put: &mut PutRow<'_>) -> Result<()> {
        read_rows(source, put)
    }
}

/// Takes a row and its value.
pub type PutRow<'a> = dyn FnMut(Vec<u8>, Vec<u8>) -> Result<()> + 'a;

/// Rows as the entries of a page have left them, which are not written yet.
pub struct Page<'a> {
    rows: &'a dyn Rows,
    changed: &'a Batch,
    range: Range,
}

impl Page<'_> {
    /// Of keys' hashes, as the view's [`Context`] has it.
    pub fn range(&self) -> Range {
        self.range
    }

    /// A row as the page's entries so far have left it.
    pub fn get(&self, row: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.changed.changes.get(row) {
            Some(value) => Ok(value.clone()),
            None => self.rows.get(row),
        }
    }

    /// As [`Rows::scan`].
    pub fn scan(&self, from: &[u8], until: &[u8], each: &mut Each<'_>) -> Result<()> {
        if from >= until {
            return Ok(());
        }
        let changes = self.changed.changes.range(from.to_vec()..until.to_vec());
        let mut changes = changes.map(|(row, value)| (row.as_slice(), value.as_deref())).peekable();
        let mut goes_on = true;
        self.rows.scan(from, until, &mut |row, value| {
            while let Some((changed, now)) = changes.next_if(|(changed, _)| *changed < row) {
                goes_on = now.map_or(Ok(true), |now| each(changed, now))?;
                if !goes_on {
                    return Ok(false);
                }
            }
            goes_on = match changes.next_if(|(changed, _)| *changed == row) {
                Some((_, None)) => true,
                Some((_, Some(now))) => each(row, now)?,
                None => each(row, value)?,
            };
            Ok(goes_on)
        })?;
        for (row, value) in changes {
            goes_on = goes_on && value.map_or(Ok(true), |value| each(row, value))?;
        }
        Ok(())
    }
}

/// Rows of the fold itself begin with this byte; a view's begin with none of the two.
const OWN: u8 = 0;
const END: u8 = 255;
/// View, version and position.
const POSITION: &[u8] = &[OWN, b'p'];
const SESSION: &[u8] = &[OWN, b's'];
/// Rows of one batch where a snapshot is restored, or rows are given up.
static BATCH_ROWS: Knob = Knob::new("view.batch-rows", 1000, &[1, 2, 7]);

/// How far rows have come at a moment; nothing of those that were never kept.
pub fn position(moment: &dyn Moment) -> Result<Option<Position>> {
    let mark = moment.get(POSITION)?.map(|bytes| Mark::from_bytes(&bytes)).transpose();
    Ok(mark.map_err(|_| damaged("the position"))?.map(|mark| mark.position))
}

fn sessions(moment: &dyn Moment) -> Result<Vec<(SessionId, Vec<u8>)>> {
    let mut sessions = Vec::new();
    moment.cursor(SESSION, &[OWN, b's' + 1])?.advance(&mut |row, value| {
        let id = row[SESSION.len()..].try_into().map_err(|_| damaged("a session's row"))?;
        sessions.push((SessionId(u64::from_be_bytes(id)), value.to_vec()));
        Ok(true)
    })?;
    Ok(sessions)
}

/// What the fold keeps of its own at a moment, as it lies in front of a view's payload in a snapshot,
/// and up to where: a view of any kind that begins with this and with the view's items goes on from
/// there ([`crate::Arrival`]).
pub fn front(moment: &dyn Moment) -> Result<(Position, Vec<u8>)> {
    let position = position(moment)?.unwrap_or_default();
    let sessions = sessions(moment)?;
    let mut front = position.epoch.to_bytes();
    (sessions.len() as u32).encode(&mut front);
    for (id, session) in sessions {
        id.encode(&mut front);
        front.extend_from_slice(&session);
    }
    Ok((position, front))
}

/// Of what a view keeps in its rows.
pub fn damaged(what: &str) -> Error {
    Error::corrupt(format!("read {what} of a view's rows: it is damaged: fold them anew"))
        .because(Reason::Rows)
}

fn session_row(session: SessionId) -> Vec<u8> {
    [SESSION, &session.0.to_be_bytes()].concat()
}

/// A view that is kept in rows.
pub struct InRows<R> {
    rows: Option<Arc<dyn Rows>>,
    topic: String,
    range: Range,
    /// What the page's entries have changed so far.
    page: Batch,
    told: Option<Marked>,
    /// The page's last entry is a mark.
    marked: Option<Index>,
    view: PhantomData<R>,
}

impl<R: RowsView> InRows<R> {
    fn rows(&self) -> Result<&Arc<dyn Rows>> {
        self.rows.as_ref().ok_or_else(|| {
            Error::bug(format!("open view `{}` of topic `{}`: it has no rows", R::NAME, self.topic))
        })
    }

    /// Removes everything, the position first: what is left half way is removed by the next start.
    fn clear(&self) -> Result<()> {
        let rows = self.rows()?;
        if rows.get(POSITION)?.is_some() {
            let mut batch = Batch::default();
            batch.remove(POSITION.to_vec());
            rows.write(batch)?;
        }
        let mut from = vec![OWN];
        loop {
            let mut batch = Batch::default();
            // Not from the first one again: what was removed has to be passed over.
            rows.scan(&from, &[END], &mut |row, _| {
                batch.remove(row.to_vec());
                Ok(batch.changes.len() < BATCH_ROWS.size())
            })?;
            let Some((last, _)) = batch.changes.last_key_value() else { return Ok(()) };
            from.clone_from(last);
            rows.write(batch)?;
        }
    }
}

/// Row after row, each behind a flag that says that it is there.
fn write_rows(
    moment: &dyn Moment,
    out: &mut Writer<'_>,
    goes_on: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    moment.cursor(&[OWN + 1], &[END])?.advance(&mut |row, value| {
        goes_on()?;
        out.put(&true);
        out.put_with(|out| {
            put_bytes(out, row);
            put_bytes(out, value);
        });
        Ok(true)
    })?;
    out.put(&false);
    Ok(())
}

fn read_rows(source: &mut Source<'_>, put: &mut PutRow<'_>) -> Result<()> {
    while source.get::<bool>()? {
        let pair =
            |reader: &mut Reader<'_>| Ok((reader.bytes()?.to_vec(), reader.bytes()?.to_vec()));
        let (row, value) = source.get_with(pair)?;
        put(row, value)?;
    }
    Ok(())
}

impl<R: RowsView> View for InRows<R> {
    const NAME: &'static str = R::NAME;
    const VERSION: u32 = R::VERSION;
    const OUTLIVES: bool = true;
    const BARE: Option<u8> = R::BARE;

    fn begin(context: &Context) -> InRows<R> {
        InRows {
            rows: context.rows.clone(),
            topic: context.topic.clone(),
            range: context.range,
            page: Batch::default(),
            told: context.marked.clone(),
            marked: None,
            view: PhantomData,
        }
    }

    fn apply(&mut self, index: Index, command: &[u8]) -> Applied {
        let mut changes = Batch::default();
        let applied = self.rows().and_then(|rows| {
            let page = Page { rows: &**rows, changed: &self.page, range: self.range };
            R::apply(&page, index, command, &mut changes)
        });
        match applied {
            Ok(Applied::Ok(result)) => {
                let own = |row: &Vec<u8>| matches!(row.first(), None | Some(&OWN) | Some(&END));
                assert!(!changes.changes.keys().any(own), "a view's rows are not the fold's");
                self.page.append(changes);
                self.marked = (self.told.is_some() && R::is_mark(command)).then_some(index);
                Applied::Ok(result)
            }
            Ok(applied) => applied,
            Err(e) => Applied::Failed(e),
        }
    }

    fn describe(command: &[u8]) -> String {
        R::describe(command)
    }

    fn snapshot(&self, out: &mut Writer<'_>) {
        if let Some(apart) = self.snapshot_apart() {
            apart(out, &mut || Ok(()));
        }
    }

    fn snapshot_apart(&self) -> Option<Apart> {
        let moment = self.rows().and_then(|rows| rows.moment());
        Some(Box::new(move |out, goes_on| {
            if let Err(e) = moment.and_then(|moment| R::write(&*moment, out, goes_on)) {
                out.fail(e);
            }
        }))
    }

    fn restore(context: &Context, source: &mut Source<'_>) -> Result<InRows<R>> {
        let view = InRows::<R>::begin(context);
        view.clear()?;
        let rows = view.rows()?;
        let mut batch = Batch::default();
        R::read(context, source, &mut |row, value| {
            if matches!(row.first(), None | Some(&OWN) | Some(&END)) {
                return Err(damaged("a snapshot"));
            }
            batch.put(row, value);
            if batch.changes.len() >= BATCH_ROWS.size() {
                BATCH_ROWS.cross();
                rows.write(std::mem::take(&mut batch))?;
            }
            Ok(())
        })?;
        rows.write(batch)?;
        Ok(view)
    }

    fn kept(&self) -> Result<Option<Kept>> {
        let Some(bytes) = self.rows()?.get(POSITION)? else {
            // What a restored snapshot has left half way, if anything.
            return self.clear().map(|()| None);
        };
        let mark = Mark::from_bytes(&bytes).map_err(|_| damaged("the position"))?;
        let Mark { view, version, position } = mark;
        if view != R::NAME || version != R::VERSION {
            return Err(Error::unsupported(format!(
                "open view `{}` of topic `{}`: its rows are those of view `{view}`, version \
                 {version}; this build reads version {}: use the build that wrote them, or remove \
                 them, and they are folded anew",
                R::NAME,
                self.topic,
                R::VERSION
            )));
        }
        Ok(Some((position, sessions(&*self.rows()?.moment()?)?)))
    }

    fn keep(&mut self, (position, sessions): Keeping) -> Result<()> {
        let mut batch = std::mem::take(&mut self.page);
        for (session, bytes) in sessions {
            if planted!("view.sessions-not-kept") {
                continue;
            }
            batch.changes.insert(session_row(session), bytes);
        }
        let mark = Mark { view: R::NAME.to_owned(), version: R::VERSION, position };
        if planted!("view.position-outside-the-batch") {
            let mut alone = Batch::default();
            alone.put(POSITION.to_vec(), mark.to_bytes());
            self.rows()?.write(alone)?;
        } else {
            batch.put(POSITION.to_vec(), mark.to_bytes());
        }
        self.rows()?.write(batch)?;
        if let (Some(index), Some(told)) = (self.marked.take(), &self.told) {
            told(index, self.rows()?.moment()?);
        }
        Ok(())
    }

    fn ends_page(&self) -> bool {
        self.marked.is_some() && !planted!("view.mark-within-a-page")
    }

    fn open_again(&self) -> Result<()> {
        self.rows()?.open_again()
    }

    /// The entry that could not be applied has changed nothing: its changes went with it.
    fn give_up(&mut self, _: &Context) {}
}
