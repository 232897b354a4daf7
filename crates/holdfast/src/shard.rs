//! `holdfast shard`: the parts of the names, and which directories each keeps.

use clap::Subcommand;
use holdfast_base::Result;
use holdfast_base::text::shown;
use holdfast_base::units::format_bytes;
use holdfast_client::Client;
use holdfast_command::output::Output;
use holdfast_wire::admin::{Frozen, MOVE_WAITS, Order, Shard as Part, Taken};
use serde_json::{Value, json};

/// `holdfast shard ...`.
#[derive(Subcommand, Debug)]
pub enum Shard {
    /// List the shards, the last entry of each that the node has applied, and the directories that each
    /// keeps; shard 0 keeps all others
    Ls,
    /// Add a shard: one more topic, and one more part of the names on every node. There is no way back
    Add,
    /// Give a directory right below the root to a shard, or back to shard 0, with all that is in it. It is
    /// copied while it changes, and takes no changes for a moment at the end; given to the shard that has it,
    /// it stays. What is put into it from then on is that shard's
    Move {
        /// /NAME
        dir: String,
        /// The shard's number
        #[arg(long)]
        to: u16,
    },
}

/// Carries out one of them.
pub fn run(client: &mut Client, command: &Shard, out: &mut Output) -> Result<()> {
    match command {
        Shard::Ls => {
            for part in client.shards()? {
                out.line(|| line(&part), || object(&part))?;
            }
            for why in waiting(&client.status()?.findings) {
                out.line(|| shown(why).into_owned(), || json!({"waits": why}))?;
            }
            Ok(())
        }
        Shard::Add => {
            // By its number: whoever asks again, for the answer was lost, has not asked for one more.
            let shard = client.shards()?.len() as u16;
            client.order(&Order::AddShard { shard })?;
            let count = shard + 1;
            out.line(
                || format!("{count} shards: each node opens the new one within a second or two"),
                || json!({"shards": count}),
            )
        }
        Shard::Move { dir, to } => {
            client.order(&Order::MoveDirectory { dir: dir.clone(), to: *to })?;
            out.line(
                || {
                    format!(
                        "`{}` goes to shard {to}: it is read and written meanwhile, but for a moment at the end: see `holdfast shard ls`",
                        shown(dir)
                    )
                },
                || json!({"dir": dir, "to": to}),
            )
        }
    }
}

/// Of what was found, what says that a directory cannot go on.
pub fn waiting(findings: &[String]) -> impl Iterator<Item = &str> {
    findings.iter().map(String::as_str).filter(|what| what.starts_with(MOVE_WAITS))
}

/// Names may have any characters, and each shard is one line.
fn names(dirs: &[String]) -> String {
    dirs.iter().map(|dir| format!("/{}", shown(dir))).collect::<Vec<_>>().join(", ")
}

/// One shard, for people.
pub fn line(part: &Part) -> String {
    let Part { shard, index, files, bytes, directories, coming, moving } = part;
    let mut text = format!("shard {shard}: at {index}, {files} files, {}", format_bytes(*bytes));
    match directories.is_empty() {
        true if *shard == 0 => text.push_str(", keeps what no other does"),
        true => {}
        false => text.push_str(&format!(", keeps {}", names(directories))),
    }
    if !coming.is_empty() {
        text.push_str(&format!(", is to keep {}", names(coming)));
    }
    for Frozen { dir, to } in &moving.frozen {
        let dir = shown(dir);
        text.push_str(&format!(", /{dir} is frozen and goes to shard {to}"));
    }
    for Taken { dir, parts } in &moving.taken {
        text.push_str(&format!(", has {parts} parts of /{}", shown(dir)));
    }
    if moving.is_leaving {
        text.push_str(", forgets names that are elsewhere");
    }
    if moving.held > 0 {
        text.push_str(&format!(", holds bytes of {} names elsewhere", moving.held));
    }
    if moving.owing > 0 {
        text.push_str(&format!(", has {} of others to let go", moving.owing));
    }
    text
}

/// One shard, for programs.
pub fn object(part: &Part) -> Value {
    json!({
        "shard": part.shard, "index": part.index.0, "files": part.files, "bytes": part.bytes,
        "directories": part.directories, "coming": part.coming,
        "frozen": part.moving.frozen.iter().map(|f| json!({"directory": f.dir, "to": f.to})).collect::<Vec<_>>(),
        "taken": part.moving.taken.iter().map(|t| json!({"directory": t.dir, "parts": t.parts})).collect::<Vec<_>>(),
        "leaving": part.moving.is_leaving, "held": part.moving.held, "owing": part.moving.owing,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::ids::Index;
    use holdfast_wire::admin::Moving;

    /// A directory's name with a line's end in it began another line, which said whatever it liked.
    #[test]
    fn a_shard_is_one_line_whatever_its_directories_are_called() {
        let names = || vec!["a\nshard 9: it's lost".to_owned(), "b".to_owned()];
        let frozen = names().into_iter().map(|dir| Frozen { dir, to: 0 }).collect();
        let taken = names().into_iter().map(|dir| Taken { dir, parts: 2 }).collect();
        let moving = Moving { frozen, taken, ..Moving::default() };
        let (directories, coming) = (names(), names());
        let part =
            Part { shard: 1, index: Index(7), files: 0, bytes: 0, directories, coming, moving };
        let text = line(&part);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert_eq!(text.matches("/a\\nshard 9: it's lost").count(), 4, "{text}");
        assert!(text.contains("lost, /b, is to keep"), "{text}");
    }
}
