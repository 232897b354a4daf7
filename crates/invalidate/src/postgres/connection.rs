//! One connection to PostgreSQL: proves who it is, asks in texts, and reads its log. Decides nothing.

use super::proof::{self, Scram};
use super::wire::{self, Asked, Received, Refusal, Said};
use crate::tls::{self, Checks, Words};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::net::{Endpoint, TlsClient, Wait};
use holdfast_env::runtime::{AsyncLink, within};
use holdfast_env::{RealRng, Rng};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::time::Duration;
use url::Url;

/// Until a server accepts a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// What the server calls us.
pub const APPLICATION: &str = "holdfast invalidate";
/// Bytes that one receive takes at most.
const RECEIVE_BYTES: usize = 64 << 10;
/// As libpq calls them.
const TLS: Words = Words { mode: "sslmode", authorities: "sslrootcert" };
/// What a server answers that speaks TLS, and one that does not.
const YES: u8 = b'S';
const NO: u8 = b'N';

/// A database server.
#[derive(Clone)]
pub struct Server {
    endpoint: Endpoint,
    /// `HOST:PORT`.
    address: String,
    tls: Option<TlsClient>,
    user: String,
    password: String,
    database: String,
    /// Without its password.
    pub name: String,
}

impl Server {
    /// `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, and behind it `?sslmode=MODE&sslrootcert=FILE` or not; the
    /// file is read now.
    pub fn parse(text: &str) -> Result<Server> {
        // What was wrong is said without the text: there is a password in it.
        let wrong = |why: &str| {
            Error::invalid(format!(
                "read the database's address: {why}: write postgres://USER:PASSWORD@HOST:PORT/DATABASE"
            ))
        };
        let url = Url::parse(text).map_err(|e| wrong(&e.to_string()))?;
        let decoded = |part: &str| {
            let text = percent_encoding::percent_decode_str(part).decode_utf8();
            let text = text.map_err(|_| wrong("a part is no UTF-8"))?.into_owned();
            if text.contains('\0') { Err(wrong("a part has a zero byte")) } else { Ok(text) }
        };
        let host = url.host_str().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| wrong("it names no host"))?;
        let database = decoded(url.path().trim_start_matches('/'))?;
        if database.is_empty() || url.username().is_empty() {
            return Err(wrong("a user and a database are needed"));
        }
        let (mut mode, mut authorities) = (None, None);
        for (name, value) in url.query_pairs() {
            match &*name {
                "sslmode" => mode = Some(value),
                "sslrootcert" => authorities = Some(value),
                // Not its value: libpq takes passwords there.
                _ => return Err(wrong(&format!("`{name}` behind the `?` is not known"))),
            }
        }
        let asked = tls::asked(&TLS, mode.as_deref(), authorities.as_deref())?;
        let tls = asked.map(|tls::Asked { checks, authorities }| {
            TlsClient::of_others(&authorities, checks == Checks::Authority)
        });
        let address = format!("{host}:{}", url.port().unwrap_or(5432));
        Ok(Server {
            endpoint: Endpoint::parse(&address)?,
            user: decoded(url.username())?,
            password: decoded(url.password().unwrap_or_default())?,
            name: format!("{address}/{database}"),
            tls: tls.transpose()?,
            address,
            database,
        })
    }

    pub fn database(&self) -> &str {
        &self.database
    }

    /// Connects, to ask in SQL, or also for the log.
    pub async fn connect(&self, reads_the_log: bool) -> Result<Connection> {
        let doing = format!("connect to database `{}`", self.name);
        let connecting = async {
            let link = AsyncLink::connect(&self.endpoint, CONNECT).await;
            let link = link.map_err(|e| Error::from(e).context(&doing))?;
            let mut conn = Connection { link, received: Received::default() };
            if let Some(tls) = &self.tls {
                conn.seal(tls, &self.address).await.map_err(|e| e.context(&doing))?;
            }
            conn.begin(self, reads_the_log).await.map_err(|e| e.context(&doing))?;
            Ok(conn)
        };
        let silent = || Error::retry(format!("{doing}: it does not answer"));
        within(CONNECT, connecting).await.ok_or_else(silent)?
    }
}

/// An error that another try may mend, or not, by its class in the server's manual.
fn refused(refusal: &Refusal) -> Error {
    let Refusal { state, message } = refusal;
    let said = format!("the database says: {message} ({state})");
    match (state.get(..2).unwrap_or_default(), state.as_str()) {
        // Whoever asks is not let in, may not do that, or there is no such database.
        ("28" | "3D", _) | (_, "42501") => Error::invalid(said),
        // As many slots as it may have.
        (_, "53400") => Error::invalid(format!("{said}: raise `max_replication_slots`")),
        // A file of the log, or what decodes it, is there no more.
        (_, "58P01" | "42704") => Error::not_found(said),
        _ => Error::retry(said),
    }
}

/// The same of what was refused while a log was read. What the server cannot put into a message, it cannot the
/// next time either: a text that is none in its encoding, a row of a gigabyte. Then the log ends there.
fn refused_in_log(refusal: &Refusal) -> Error {
    let Refusal { state, message } = refusal;
    let is_too_much = message.starts_with("invalid memory alloc request size");
    match state.get(..2).unwrap_or_default() {
        "22" | "54" => {}
        _ if is_too_much => {}
        // A publication that is gone: what is checked at the start says so.
        _ if state == "42704" => return Error::retry(refused(refusal).message),
        _ => return refused(refusal),
    }
    Error::not_found(format!("the database cannot tell what a row is: {message} ({state})"))
}

/// A connection.
pub struct Connection {
    link: AsyncLink,
    received: Received,
}

/// A row of texts; nothing for a null.
pub type Texts = Vec<Option<String>>;

impl Connection {
    /// Agrees on TLS before anything is said that others may not hear, or may put into the server's mouth.
    async fn seal(&mut self, tls: &TlsClient, address: &str) -> Result<()> {
        self.send(&wire::TLS_REQUEST).await?;
        // One byte: what came behind it would be taken for the server's, who has proved nothing yet.
        let mut answer = Vec::new();
        let link = &mut self.link;
        let got = poll_fn(|cx| {
            link.poll_receive(cx, |link| {
                link.receive_append(&mut answer, 1, &mut [], Wait::No, &mut Vec::new())
            })
        });
        got.await.map_err(|e| Error::retry(format!("ask the database for TLS: {e}")))?;
        match answer[..] {
            [YES] => {}
            [NO] => {
                return Err(Error::invalid(
                    "the server speaks no TLS, which `sslmode` or `sslrootcert` asks for: set `ssl = on` in its \
                     postgresql.conf, or give `sslmode=disable`",
                ));
            }
            _ => return Err(Error::retry("ask the database for TLS: it does not answer that")),
        }
        self.link.agree_on_tls(tls, address, CONNECT).await.map_err(|e| match e.kind {
            // Whom it is to believe is somebody's to say.
            Kind::Denied => Error::invalid(tls::refused(&e.message, &TLS)),
            _ => e,
        })
    }

    async fn begin(&mut self, server: &Server, reads_the_log: bool) -> Result<()> {
        let mut settings = vec![
            ("user", server.user.as_str()),
            ("database", &server.database),
            ("application_name", APPLICATION),
            ("client_encoding", "UTF8"),
            // What the sums and the rows of a log are made of must not hang on a server's settings.
            ("bytea_output", "hex"),
            ("standard_conforming_strings", "on"),
            ("statement_timeout", "0"),
        ];
        if reads_the_log {
            settings.push(("replication", "database"));
        }
        self.send(&wire::startup(&settings)).await?;
        let mut random = [0; 18];
        for part in random.chunks_mut(8) {
            part.copy_from_slice(&RealRng.next_u64().to_le_bytes()[..part.len()]);
        }
        let mut scram = Scram::begin(&server.password, &random);
        let mut is_proved = true;
        loop {
            let answer = match self.say(&mut |said| begin_step(said, server, &mut scram)).await? {
                Step::Ready => return Ok(()),
                Step::Waits => continue,
                Step::Verified => {
                    is_proved = true;
                    continue;
                }
                // A server that asks for a proof gives one before it lets anybody in.
                Step::Accepts if is_proved => continue,
                Step::Accepts => {
                    return Err(Error::invalid(
                        "the server does not prove that it knows the password",
                    ));
                }
                Step::Scram(answer) => {
                    is_proved = false;
                    answer
                }
                Step::Answers(answer) => answer,
            };
            self.send(&answer).await?;
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let mut sent = 0;
        while sent < bytes.len() {
            let rest = [IoSlice::new(&bytes[sent..])];
            let some = poll_fn(|cx| self.link.poll_send(cx, |link| link.send(&rest, None, false)));
            sent += some.await.map_err(|e| Error::from(e).context("send to the database"))?;
        }
        Ok(())
    }

    /// Receives what comes next; cut short, it has received nothing.
    async fn receive(&mut self) -> Result<()> {
        let bytes = self.received.space();
        let link = &mut self.link;
        let got = poll_fn(|cx| {
            let end = bytes.len() + RECEIVE_BYTES;
            link.poll_receive(cx, |link| {
                link.receive_append(bytes, end, &mut [], Wait::No, &mut Vec::new())
            })
        });
        match got.await {
            Ok((0, _)) => Err(Error::retry("read from the database: it ended the connection")),
            Ok(_) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                Err(Error::retry("read from the database: it ended the connection"))
            }
            Err(e) => Err(Error::retry(format!("read from the database: {e}"))),
        }
    }

    /// Waits for a message, and gives it to whoever takes it.
    async fn say<T>(&mut self, take: &mut (dyn FnMut(Said<'_>) -> Result<T> + Send)) -> Result<T> {
        loop {
            if let Some((tag, body)) = self.received.message()? {
                return take(Said::read(tag, body)?);
            }
            self.receive().await?;
        }
    }

    /// The rows of a statement.
    pub async fn ask(&mut self, text: &str) -> Result<Vec<Texts>> {
        self.send(&wire::query(text)).await?;
        let (mut rows, mut failed, mut is_over) = (Vec::new(), None, false);
        while !is_over {
            let mut take = |said: Said<'_>| {
                match said {
                    Said::Row(cells) => {
                        let text = |cell: &[u8]| String::from_utf8_lossy(cell).into_owned();
                        rows.push(cells.into_iter().map(|cell| cell.map(text)).collect());
                    }
                    Said::Refuses(refusal) => failed = Some(refused(&refusal)),
                    Said::Ready => is_over = true,
                    _ => {}
                }
                Ok(())
            };
            if let Err(e) = self.say(&mut take).await {
                // Why it ended says more than that it did.
                return Err(failed.unwrap_or(e));
            }
        }
        failed.map_or(Ok(rows), Err)
    }

    /// Begins to read a log by a statement.
    pub async fn copy(&mut self, text: &str) -> Result<()> {
        self.send(&wire::query(text)).await?;
        let mut has_begun = false;
        while !has_begun {
            self.say(&mut |said| match said {
                Said::CopyBegins => {
                    has_begun = true;
                    Ok(())
                }
                Said::Refuses(refusal) => Err(refused(&refusal)),
                _ => Ok(()),
            })
            .await?;
        }
        Ok(())
    }

    /// Takes what has come of a copy; if nothing has, waits for more, for so long.
    pub async fn copied(
        &mut self,
        patience: Duration,
        take: &mut (dyn FnMut(&[u8]) -> Result<()> + Send),
    ) -> Result<()> {
        if self.take_copied(take)? {
            return Ok(());
        }
        if let Some(received) = within(patience, self.receive()).await {
            received?;
            self.take_copied(take)?;
        }
        Ok(())
    }

    /// Whether there was any.
    fn take_copied(&mut self, take: &mut (dyn FnMut(&[u8]) -> Result<()> + Send)) -> Result<bool> {
        let mut has_any = false;
        while let Some((tag, body)) = self.received.message()? {
            has_any = true;
            match Said::read(tag, body)? {
                Said::Copy(body) => take(body)?,
                Said::Refuses(refusal) => return Err(refused_in_log(&refusal)),
                Said::CopyEnds => {
                    return Err(Error::retry("read the row log: the database ended it"));
                }
                _ => {}
            }
        }
        Ok(has_any)
    }

    /// Says how far a log was read.
    pub async fn stand(&mut self, received: u64, kept: u64, time_us: u64) -> Result<()> {
        self.send(&wire::standing(received, kept, time_us)).await
    }
}

/// What a message of the beginning leads to.
enum Step {
    Waits,
    Answers(Vec<u8>),
    Scram(Vec<u8>),
    Verified,
    Accepts,
    Ready,
}

fn begin_step(said: Said<'_>, server: &Server, scram: &mut Scram) -> Result<Step> {
    let asked = match said {
        Said::Asks(asked) => asked,
        Said::Refuses(refusal) => return Err(refused(&refusal)),
        Said::Ready => return Ok(Step::Ready),
        _ => return Ok(Step::Waits),
    };
    Ok(match asked {
        Asked::Nothing => Step::Accepts,
        Asked::Clear => {
            return Err(Error::invalid(
                "the server asks for the password in clear: set `scram-sha-256` in its pg_hba.conf",
            ));
        }
        Asked::Md5 { salt } => {
            Step::Answers(wire::password(&proof::md5(&server.user, &server.password, salt)))
        }
        Asked::Sasl(ways) if ways.contains(&proof::SCRAM) => {
            Step::Scram(wire::sasl_begins(proof::SCRAM, &scram.first()))
        }
        Asked::SaslGoesOn(question) => Step::Scram(wire::sasl_goes_on(&scram.answer(question)?)),
        Asked::SaslEnds(said) => {
            scram.verify(said)?;
            Step::Verified
        }
        Asked::Sasl(ways) => {
            return Err(Error::unsupported(format!(
                "the server proves by `{}` alone: set `scram-sha-256` in its pg_hba.conf",
                ways.join("`, `")
            )));
        }
        Asked::Other(kind) => {
            return Err(Error::unsupported(format!(
                "the server asks for a proof of kind {kind}: set `scram-sha-256` in its pg_hba.conf"
            )));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_no_password_is_printed() {
        let server = Server::parse("postgres://me:se%3Acret%40@h:7/my%20shop").unwrap();
        assert_eq!((server.user.as_str(), server.password.as_str()), ("me", "se:cret@"));
        assert_eq!((server.name.as_str(), server.database.as_str()), ("h:7/my shop", "my shop"));
        let v6 = Server::parse("postgresql://me@[::1]/shop?sslmode=disable").unwrap();
        assert_eq!(v6.name, "[::1]:5432/shop");
        for wrong in [
            "postgres://me:secret@h",
            "postgres://:secret@h/shop",
            "postgres://me:secret@/shop",
            "postgres://me:secret@h:x/shop",
            "postgres://me:secret%00@h/shop",
            "postgres://me@h/shop?password=secret",
        ] {
            let message = Server::parse(wrong).err().unwrap().message;
            assert!(
                message.contains("postgres://USER") && !message.contains("secret"),
                "{message}"
            );
        }
    }

    #[test]
    fn tls_is_asked_for_in_the_words_of_libpq() {
        let ca = concat!(env!("CARGO_MANIFEST_DIR"), "/../env/tests/tls/ca.pem");
        let of = |query: &str| Server::parse(&format!("postgres://me:secret@h/shop?{query}"));
        assert!(of("sslmode=disable").unwrap().tls.is_none());
        for query in ["", "sslmode=require&", "sslmode=verify-ca&", "sslmode=verify-full&"] {
            assert!(of(&format!("{query}sslrootcert={ca}")).unwrap().tls.is_some(), "{query}");
        }
        for (query, names) in [
            ("sslmode=require", "`sslrootcert=FILE`"),
            ("sslmode=prefer", "`sslmode`"),
            ("sslrootcert=/nonexistent.pem", "/nonexistent.pem"),
        ] {
            let message = of(query).err().unwrap().message;
            assert!(message.contains(names) && !message.contains("secret"), "{message}");
        }
    }

    #[test]
    fn what_another_try_does_not_mend_is_told_from_what_it_may() {
        use holdfast_base::Kind;
        let kind = |state: &str| {
            refused(&Refusal { state: state.to_owned(), message: String::new() }).kind
        };
        for (state, expected) in [
            ("28P01", Kind::Invalid),
            ("3D000", Kind::Invalid),
            ("42501", Kind::Invalid),
            ("53400", Kind::Invalid),
            ("58P01", Kind::NotFound),
            ("55006", Kind::Retry),
            ("57P03", Kind::Retry),
            ("", Kind::Retry),
        ] {
            assert_eq!(kind(state), expected, "{state}");
        }
        let in_log = |state: &str, message: &str| {
            refused_in_log(&Refusal { state: state.to_owned(), message: message.to_owned() }).kind
        };
        for (state, message, expected) in [
            ("22021", "invalid byte sequence for encoding \"UTF8\": 0xff", Kind::NotFound),
            ("54000", "out of memory", Kind::NotFound),
            ("XX000", "invalid memory alloc request size 1200000003", Kind::NotFound),
            ("XX000", "could not open relation", Kind::Retry),
            ("42704", "publication \"holdfast_main\" does not exist", Kind::Retry),
            ("58P01", "requested WAL segment has already been removed", Kind::NotFound),
            ("57P01", "terminating connection due to administrator command", Kind::Retry),
        ] {
            assert_eq!(in_log(state, message), expected, "{state}");
        }
    }
}
