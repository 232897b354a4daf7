//! How a connection over TCP proves that it knows the server's secret, and the server that it
//! does, without either sending it: docs/formats/wire.md, "Who asks". Both sides as cores: frames
//! in, frames out; no socket, no clock.

use crate::secret::{Secret, Secrets, Token, draw};
use crate::{Rng, planted};
use holdfast_base::frame::{self, Decoded, FrameKind, HEADER_BYTES};
use holdfast_base::{Error, Kind, Result};
use ring::hmac;
use std::sync::Arc;

/// Answered by the server itself, before anything else: [`HELLO_BYTES`] that say who asks.
pub const OP_HELLO: u16 = 0x0010;
/// Answered by the server itself, after `OP_HELLO`: the proof.
pub const OP_PROVE: u16 = 0x0011;

const VERSION: u8 = 1;
const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
/// Version, role, nonce.
const HELLO_BYTES: usize = 2 + NONCE_BYTES;
/// Behind those of a token: its id.
const ID_BYTES: usize = 8;
/// And the client's name.
const TOKEN_NAME_BYTES_MAX: usize = 63;
/// The server's answer: its nonce and its proof.
const ANSWER_BYTES: usize = NONCE_BYTES + PROOF_BYTES;
/// What a server may say before it is known, which is a sentence at most.
const STRANGE_BYTES_MAX: usize = 16 << 10;
const KEY: &str = "holdfast native 1";
const OF_CLIENT: &[u8] = b"holdfast client 1";
const OF_SERVER: &[u8] = b"holdfast server 1";

/// As what somebody connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Client = 1,
    /// A node of the same cluster.
    Node = 2,
    /// A client that has a token.
    Token = 3,
}

/// Who is connected. Nobody else reaches a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// The user that the server runs as, or root, over the Unix socket.
    Owner,
    /// Somebody who proved the secret.
    Client,
    /// The same, who says to be a node: another one of the cluster.
    Node,
    /// Whom a certificate names, which an authority of ours has signed, or a token.
    Named(Arc<Named>),
}

impl Who {
    /// Whether another node of the cluster asks.
    pub fn is_node(&self) -> bool {
        match self {
            Who::Owner | Who::Client => false,
            Who::Node => true,
            Who::Named(named) => named.role == Role::Node,
        }
    }
}

/// What a certificate or a token says of who holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// A node or a client, by a certificate; a client by a token.
    pub role: Role,
    /// Its name, unique among nodes or clients of the cluster.
    pub name: String,
    /// The certificate's number or the token's id, in hexadecimal digits: what a revocation names.
    pub serial: String,
    /// When the certificate ends, in seconds since 1970. Of a token the cluster knows.
    pub until_s: i64,
}

impl Named {
    /// Its name, and which token or certificate of that name it has.
    pub fn holder(&self) -> String {
        format!("{} {}", self.name, self.serial)
    }

    /// Whoever proves this token.
    pub fn of_token(token: &Token) -> Named {
        Named {
            role: Role::Token,
            name: token.name.clone(),
            serial: token_serial(token.id),
            until_s: i64::MAX,
        }
    }
}

/// A token's id as [`Named::serial`] spells it.
pub fn token_serial(id: u64) -> String {
    format!("{id:016x}")
}

/// What one side says of both nonces, and the key that it signs it with.
fn statement(secret: &Secret, side: &[u8], role: u8, nonces: [&[u8]; 2]) -> (hmac::Key, Vec<u8>) {
    let mut text = side.to_vec();
    text.push(role);
    nonces.iter().for_each(|nonce| text.extend_from_slice(nonce));
    (secret.key(KEY), text)
}

/// The server's side of one connection.
pub struct Guard {
    secret: Secret,
    /// Nodes show certificates: all of them have the secret, so it makes nobody one of them.
    only_clients: bool,
    /// Made by a hello, used up by a proof.
    challenge: Option<Challenge>,
}

struct Challenge {
    role: Role,
    /// What both sides have to know.
    key: Secret,
    /// Whom a right proof makes.
    who: Who,
    client: [u8; NONCE_BYTES],
    server: [u8; NONCE_BYTES],
}

impl Guard {
    pub fn new(secret: Secret, only_clients: bool) -> Guard {
        Guard { secret, only_clients, challenge: None }
    }

    /// Answers `OP_HELLO`.
    pub fn hello(&mut self, rng: &dyn Rng, meta: &[u8]) -> Result<Vec<u8>> {
        let unknown =
            || Error::unsupported("greet: this server knows no such greeting: use matching builds");
        let (meta, rest) = meta.split_first_chunk::<HELLO_BYTES>().ok_or_else(unknown)?;
        let secret = || self.secret.clone();
        // A token's key also where nobody made it, or it was revoked: who does not know the key
        // learns nothing of either.
        let (role, known, who) = match meta[..2] {
            [VERSION, 3] => {
                let token = self.token(rest).ok_or_else(unknown)?;
                let who = Who::Named(Arc::new(Named::of_token(&token)));
                (Role::Token, token.key().clone(), who)
            }
            _ if !rest.is_empty() => return Err(unknown()),
            [VERSION, 1] => (Role::Client, secret(), Who::Client),
            [VERSION, 2] if self.only_clients && !planted!("net.secret-makes-a-node") => {
                return Err(Error::denied(
                    "greet: nodes of this cluster know each other by certificates: make one for this node with `holdfast cert node`",
                ));
            }
            [VERSION, 2] => (Role::Node, secret(), Who::Node),
            _ => return Err(unknown()),
        };
        let mut client = [0; NONCE_BYTES];
        client.copy_from_slice(&meta[2..]);
        let server: [u8; NONCE_BYTES] =
            if planted!("env.same-challenge-always") { [7; NONCE_BYTES] } else { draw(rng) };
        let (key, text) = statement(&known, OF_SERVER, role as u8, [&client, &server]);
        let mut answer = server.to_vec();
        answer.extend_from_slice(hmac::sign(&key, &text).as_ref());
        self.challenge = Some(Challenge { role, key: known, who, client, server });
        Ok(answer)
    }

    /// The token that a greeting names.
    fn token(&self, rest: &[u8]) -> Option<Token> {
        let (id, name) = rest.split_first_chunk::<ID_BYTES>()?;
        let name = std::str::from_utf8(name).ok()?;
        let fits = (1..=TOKEN_NAME_BYTES_MAX).contains(&name.len());
        fits.then(|| self.secret.token(name, u64::from_le_bytes(*id)))
    }

    /// Decides about `OP_PROVE`. After an error the connection is to end.
    pub fn prove(&mut self, proof: &[u8]) -> Result<Who> {
        let Some(Challenge { role, key, who, client, server }) = self.challenge.take() else {
            return Err(Error::denied("prove the secret: greet first"));
        };
        let (key, text) = statement(&key, OF_CLIENT, role as u8, [&client, &server]);
        if hmac::verify(&key, &text, proof).is_err() && !planted!("env.any-proof-will-do") {
            return Err(Error::denied(match role {
                Role::Token => {
                    "prove the token: it is not this cluster's: give the whole line that `holdfast token create` printed"
                }
                Role::Client | Role::Node => {
                    "prove the secret: it is not this server's: give the file `secret` of its data directory with `--secret FILE`"
                }
            }));
        }
        Ok(who)
    }
}

/// What a stranger hears of everything but a ping and the greeting.
pub(super) fn refusal() -> Error {
    Error::denied(
        "ask this server: over TCP it answers those who prove its secret: use `--secret FILE` with the file `secret` of its data directory (HOLDFAST_SECRET_FILE), or its Unix socket",
    )
}

/// What somebody on another machine hears who does not speak TLS, where there are certificates.
pub(super) fn must_be_sealed() -> Error {
    Error::denied(
        "ask this server: from other machines it is asked over TLS: name the cluster's authority with `--cacert FILE` (HOLDFAST_CA_FILE)",
    )
}

/// The client's side of one connection: say [`Handshake::output`], hand over what comes.
pub struct Handshake {
    secrets: Secrets,
    role: Role,
    nonce: [u8; NONCE_BYTES],
    out: Vec<u8>,
    received: Vec<u8>,
    proving: bool,
}

impl Handshake {
    /// Of somebody who has one of these secrets.
    pub fn new(secrets: Secrets, role: Role, rng: &dyn Rng) -> Handshake {
        Handshake::begin(secrets, role, &[], rng)
    }

    /// Of the client that a token names.
    pub fn with_token(token: &Token, rng: &dyn Rng) -> Handshake {
        let mut rest = token.id.to_le_bytes().to_vec();
        rest.extend_from_slice(token.name.as_bytes());
        Handshake::begin(token.key().clone().into(), Role::Token, &rest, rng)
    }

    fn begin(secrets: Secrets, role: Role, rest: &[u8], rng: &dyn Rng) -> Handshake {
        let nonce = draw(rng);
        let mut out = Vec::new();
        frame::encode(&mut out, FrameKind::Request, OP_HELLO, 1, 0, 0, |meta| {
            meta.extend_from_slice(&[VERSION, role as u8]);
            meta.extend_from_slice(&nonce);
            meta.extend_from_slice(rest);
        });
        Handshake { secrets, role, nonce, out, received: Vec::new(), proving: false }
    }

    /// Takes what is to be sent now.
    pub fn output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Takes what the server sent, in pieces of any size; true once both sides have proved what
    /// they know and the connection can be used. The server says nothing unasked, so no byte of
    /// anything else is among it.
    pub fn received(&mut self, bytes: &[u8]) -> Result<bool> {
        self.received.extend_from_slice(bytes);
        let header = match frame::decode(&self.received)? {
            Decoded::NeedBytes(_) => return self.bounded(),
            Decoded::Frame(header) => header,
        };
        let end = HEADER_BYTES + header.meta_bytes as usize;
        if header.status() != 0 {
            return Err(self.refused(&header, end));
        }
        let awaited = if self.proving { (OP_PROVE, 2) } else { (OP_HELLO, 1) };
        let whole = self.received.len() == end && header.body_bytes == 0;
        if (header.opcode, header.request_id) != awaited || !whole {
            return Err(Error::bug("the server answered a greeting with something else"));
        }
        if self.proving {
            return Ok(true);
        }
        let answer = self.received[HEADER_BYTES..].to_vec();
        self.received.clear();
        self.prove(&answer)?;
        Ok(false)
    }

    fn bounded(&self) -> Result<bool> {
        match self.received.len() > STRANGE_BYTES_MAX {
            true => Err(Error::bug("the server answered a greeting with too much")),
            false => Ok(false),
        }
    }

    fn refused(&self, header: &frame::Header, end: usize) -> Error {
        let meta = self.received.get(HEADER_BYTES..end).unwrap_or_default();
        let error = Error::decode(header.status(), meta);
        match error.kind {
            // Of a build from before there were secrets: it could be anybody.
            Kind::Unsupported => error.context(
                "the server cannot prove that it knows the secret: use matching builds of client and node",
            ),
            _ => error,
        }
    }

    /// Finds the secret that the server has proved, and proves it in turn. A server that knows
    /// none of ours is somebody else's, and hears nothing of us.
    fn prove(&mut self, answer: &[u8]) -> Result<()> {
        let answer: &[u8; ANSWER_BYTES] = answer
            .try_into()
            .map_err(|_| Error::unsupported("the server greets otherwise: use matching builds"))?;
        let (server, proof) = answer.split_at(NONCE_BYTES);
        let (role, nonces) = (self.role as u8, [&self.nonce[..], server]);
        let found = self.secrets.iter().find(|secret| {
            let (key, text) = statement(secret, OF_SERVER, role, nonces);
            hmac::verify(&key, &text, proof).is_ok() || planted!("env.any-server-will-do")
        });
        let secret = found.ok_or_else(|| {
            Error::denied(match self.role {
                Role::Token => "the token that was given is not this cluster's, or was changed: give the whole line that `holdfast token create` printed, with `--token FILE`",
                _ => "the secret that was given is not this server's: give the file `secret` of its data directory with `--secret FILE`",
            })
        })?;
        let (key, text) = statement(secret, OF_CLIENT, role, nonces);
        frame::encode(&mut self.out, FrameKind::Request, OP_PROVE, 2, 0, 0, |meta| {
            meta.extend_from_slice(hmac::sign(&key, &text).as_ref());
        });
        self.proving = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SeededRng;

    fn secret(seed: u64) -> Secret {
        Secret::draw(&SeededRng::new(seed))
    }

    /// The server's answer to what the client said, as a frame.
    fn answered(guard: &mut Guard, request: &[u8], rng: &dyn Rng) -> (Vec<u8>, Option<Who>) {
        let Ok(Decoded::Frame(header)) = frame::decode(request) else { panic!("a whole frame") };
        let meta = &request[HEADER_BYTES..];
        let (answer, who) = match header.opcode {
            OP_HELLO => (guard.hello(rng, meta), None),
            _ => match guard.prove(meta) {
                Ok(who) => (Ok(Vec::new()), Some(who)),
                Err(e) => (Err(e), None),
            },
        };
        let mut out = Vec::new();
        let (opcode, id) = (header.opcode, header.request_id);
        let status = answer.as_ref().err().map_or(0, |e| e.kind as u32);
        frame::encode(&mut out, FrameKind::Response, opcode, id, status, 0, |m| match &answer {
            Ok(bytes) => m.extend_from_slice(bytes),
            Err(e) => e.encode(m),
        });
        (out, who)
    }

    fn meet(own: Vec<Secret>, of_server: Secret, role: Role, piece: usize) -> Result<Who> {
        let handshake = Handshake::new(Secrets::new(own), role, &SeededRng::new(9));
        shake(handshake, of_server, piece)
    }

    fn shake(mut handshake: Handshake, of_server: Secret, piece: usize) -> Result<Who> {
        let rng = SeededRng::new(9);
        // Tokens are believed also where nodes have certificates.
        let mut guard = Guard::new(of_server, handshake.role == Role::Token);
        let mut known = None;
        loop {
            let said = handshake.output();
            assert!(!said.is_empty(), "the two wait for each other");
            let (answer, who) = answered(&mut guard, &said, &rng);
            known = known.or(who);
            for part in answer.chunks(piece) {
                if handshake.received(part)? {
                    return Ok(known.expect("the server agrees"));
                }
            }
        }
    }

    #[test]
    fn both_sides_prove_the_secret_in_pieces_of_any_size() {
        for piece in [1, 7, 1000] {
            let others = vec![secret(1), secret(2), secret(3)];
            assert_eq!(meet(others, secret(2), Role::Client, piece), Ok(Who::Client));
            assert_eq!(meet(vec![secret(2)], secret(2), Role::Node, piece), Ok(Who::Node));
        }
    }

    #[test]
    fn a_token_makes_somebody_the_client_of_its_name_at_its_own_cluster_alone() {
        let rng = SeededRng::new(3);
        for piece in [1, 7, 1000] {
            let token = secret(1).token("backup.1", 0xabc);
            let read = Token::parse(&token.text()).unwrap();
            let who = shake(Handshake::with_token(&read, &rng), secret(1), piece).unwrap();
            let Who::Named(named) = who else { panic!("{who:?}") };
            assert_eq!((named.role, named.name.as_str()), (Role::Token, "backup.1"));
            assert_eq!(named.serial, "0000000000000abc");
            let e = shake(Handshake::with_token(&token, &rng), secret(2), piece).unwrap_err();
            assert!(e.kind == Kind::Denied && e.message.contains("--token"), "{e}");
        }
        // With a key that belongs to another name, or another token of the name.
        let texts = [secret(1).token("b", 7).text(), secret(1).token("a", 8).text()];
        for text in texts {
            let key = text.rsplit_once('.').unwrap().1;
            let forged = Token::parse(&format!("hft1.a.{:016x}.{key}", 7)).unwrap();
            assert!(shake(Handshake::with_token(&forged, &rng), secret(1), 1000).is_err());
        }
        // The server has the last word: a client that does not check is refused all the same.
        let mut guard = Guard::new(secret(1), true);
        let mut hello = vec![VERSION, 3];
        hello.extend_from_slice(&[5; NONCE_BYTES + ID_BYTES]);
        for bad in [&b""[..], &[b'n'; TOKEN_NAME_BYTES_MAX + 1], &[0xff]] {
            let hello = [&hello[..], bad].concat();
            assert_eq!(guard.hello(&rng, &hello).unwrap_err().kind, Kind::Unsupported);
        }
        guard.hello(&rng, &[&hello[..], b"n"].concat()).unwrap();
        assert_eq!(guard.prove(&[0; 32]).unwrap_err().kind, Kind::Denied);
    }

    #[test]
    fn a_client_tells_nothing_to_a_server_that_does_not_know_its_secret() {
        let e = meet(vec![secret(1)], secret(2), Role::Client, 1000).unwrap_err();
        assert!(e.kind == Kind::Denied && e.message.contains("--secret"), "{e}");
    }

    #[test]
    fn a_wrong_a_repeated_and_an_early_proof_are_refused() {
        let (rng, mut guard) = (SeededRng::new(1), Guard::new(secret(1), false));
        assert_eq!(guard.prove(&[0; 32]).unwrap_err().kind, Kind::Denied, "before a hello");
        let mut hello = vec![VERSION, 1];
        hello.extend_from_slice(&[5; NONCE_BYTES]);
        let prove = |answer: &[u8]| {
            let (key, text) =
                statement(&secret(1), OF_CLIENT, 1, [&[5; NONCE_BYTES], &answer[..NONCE_BYTES]]);
            hmac::sign(&key, &text).as_ref().to_vec()
        };
        let first = guard.hello(&rng, &hello).unwrap();
        assert_eq!(guard.prove(&[0; 32]).unwrap_err().kind, Kind::Denied);
        assert_eq!(guard.prove(&prove(&first)).unwrap_err().kind, Kind::Denied, "used up");
        let second = guard.hello(&rng, &hello).unwrap();
        assert_eq!(guard.prove(&prove(&first)).unwrap_err().kind, Kind::Denied, "an older one");
        let _ = guard.hello(&rng, &hello).unwrap();
        // The server's own proof, sent back to it.
        assert_eq!(guard.prove(&second[NONCE_BYTES..]).unwrap_err().kind, Kind::Denied);
        let third = guard.hello(&rng, &hello).unwrap();
        assert_eq!(guard.prove(&prove(&third)).unwrap(), Who::Client);
        for bad in [&hello[..33], &[9; 34][..], &[VERSION, 3], b""] {
            assert_eq!(guard.hello(&rng, bad).unwrap_err().kind, Kind::Unsupported);
        }
    }

    #[test]
    fn nonsense_from_a_server_ends_the_greeting() {
        let start = || Handshake::new(secret(1).into(), Role::Client, &SeededRng::new(1));
        assert!(start().received(b"HTTP/1.1 400 Bad Request, and more than a head").is_err());
        let mut early = Vec::new();
        frame::encode(&mut early, FrameKind::Response, OP_PROVE, 2, 0, 0, |_| {});
        assert!(start().received(&early).is_err(), "an answer to what was not asked");
        let mut last = Vec::new();
        let status = Kind::Retry as u32;
        frame::encode(&mut last, FrameKind::Response, 0, 0, status, 0, |m| {
            holdfast_base::codec::Encode::encode("full", m)
        });
        let e = start().received(&last).unwrap_err();
        assert!(e.kind == Kind::Retry && e.message.contains("full"), "{e}");
    }
}
