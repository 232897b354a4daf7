//! `holdfast token`: clients with rights of their own.

use clap::Subcommand;
use holdfast_base::text::utc;
use holdfast_base::{Error, Result};
use holdfast_client::{Client, Token as Proof};
use holdfast_command::output::Output;
use holdfast_env::local;
use holdfast_wire::admin::{NewToken, Order, TOKEN_TTL_MAX_S, TokenInfo};
use serde_json::json;
use std::path::PathBuf;

const DAY_S: u64 = 86_400;

/// `holdfast token ...`.
#[derive(Subcommand, Debug)]
pub enum Token {
    /// Let a client do what rules say and nothing else; its token is shown once, and kept by nobody
    /// but who gets it. Commands take it with --token FILE
    Create {
        /// The client's: 1 to 63 letters, digits, `.`, `-`, `_`. A certificate of `holdfast cert
        /// client NAME` has the same rights
        name: String,
        /// What it may do, may be repeated: fs:/PATH:r or :rw for what lies at and below a path,
        /// log:TOPIC:r, log:PREFIX*:rw, admin:r to look at the cluster, admin:rw for everything,
        /// audit:r to read the audit trail
        #[arg(long, required = true, value_name = "RULE")]
        allow: Vec<String>,
        /// How long: a number with s, m, h or d
        #[arg(long, default_value = "30d", value_name = "TIME", value_parser = ttl_s)]
        ttl: u64,
        /// Write it there, for this user alone, instead of printing it; the file must not exist
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// List clients with rights, until when they have them, and when the node that answers heard
    /// from each last
    Ls,
    /// Have every node refuse a client from now on, over open connections too
    Revoke {
        /// The client's
        name: String,
    },
}

/// Reads `30d`.
fn ttl_s(text: &str) -> Result<u64, String> {
    let wrong = || "write a number from 1 on and s, m, h or d, ten years at most".to_owned();
    let unit_s = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3600,
        Some('d') => DAY_S,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    let fits = number.checked_mul(unit_s).filter(|ttl_s| (1..=TOKEN_TTL_MAX_S).contains(ttl_s));
    fits.ok_or_else(wrong)
}

/// Does what was asked for.
pub fn run(client: &mut Client, command: &Token, out: &mut Output) -> Result<()> {
    match command {
        Token::Create { name, allow, ttl, out: file } => {
            if let Some(file) = file
                && file.try_exists().unwrap_or(true)
            {
                return Err(Error::exists(format!(
                    "write a token to `{}`: it exists: name another file",
                    file.display()
                )));
            }
            if let Some(file) = file {
                // Before there is a token that nobody would have.
                local::can_write_private(file).map_err(|e| {
                    Error::from(e).context(format_args!("write a token to `{}`", file.display()))
                })?;
            }
            let new = NewToken { name: name.clone(), rules: allow.clone(), ttl_s: *ttl };
            let text = client.create_token(&new)?;
            if Proof::parse(&text).is_none() {
                return Err(Error::bug("make a token: the node answered with something else"));
            }
            let Some(file) = file else {
                return out.line(|| text.clone(), || json!({"name": name, "token": text}));
            };
            local::write_private(file, format!("{text}\n").as_bytes()).map_err(|e| {
                Error::from(e).context(format_args!(
                    "write a token to `{}` (revoke it with `holdfast token revoke {name}`, and make it again)",
                    file.display()
                ))
            })?;
            out.line(
                || format!("the token of `{name}` is in `{}`", file.display()),
                || json!({"name": name, "file": file.display().to_string()}),
            )
        }
        Token::Ls => {
            for token in client.tokens()? {
                let TokenInfo { name, rules, until_s, used_s } = token;
                let used = match used_s {
                    0 => "not heard from".to_owned(),
                    at => format!("heard from {}", utc(at, ' ')),
                };
                out.line(
                    || format!("{name}  {}  until {}, {used}", rules.join(" "), utc(until_s, ' ')),
                    || json!({"name": name, "allow": rules, "until_s": until_s, "used_s": used_s}),
                )?;
            }
            Ok(())
        }
        Token::Revoke { name } => {
            client.order(&Order::RevokeToken { name: name.clone() })?;
            out.line(|| format!("`{name}` may do nothing any more"), || json!({"revoked": name}))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_units_and_have_an_end() {
        for (text, seconds) in [("1s", 1), ("90m", 5400), ("2h", 7200), ("3650d", TOKEN_TTL_MAX_S)]
        {
            assert_eq!(ttl_s(text), Ok(seconds), "{text}");
        }
        for bad in ["", "d", "0d", "1", "-1d", "1.5h", "3651d", "99999999999999999999d", "1w", "1é"]
        {
            assert!(ttl_s(bad).is_err(), "{bad}");
        }
    }
}
