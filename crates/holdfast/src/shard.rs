//! `holdfast shard`: the parts of the names, and which directories each keeps.

use clap::Subcommand;
use holdfast_base::Result;
use holdfast_base::units::format_bytes;
use holdfast_client::Client;
use holdfast_command::output::Output;
use holdfast_wire::admin::{Order, Shard as Part};
use serde_json::{Value, json};

/// `holdfast shard ...`.
#[derive(Subcommand, Debug)]
pub enum Shard {
    /// List the shards, the last entry of each that the node has applied, and the directories that each
    /// keeps; shard 0 keeps all others
    Ls,
    /// Add a shard: one more topic, and one more part of the names on every node. There is no way back
    Add,
    /// Give an empty directory right below the root to a shard, or back to shard 0. What is put into it
    /// from then on is that shard's
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
            Ok(())
        }
        Shard::Add => {
            client.order(&Order::AddShard {})?;
            // Others may add some, too: as this node has it.
            let count = client.shards()?.len();
            out.line(
                || format!("{count} shards: each node opens the new one within a second or two"),
                || json!({"shards": count}),
            )
        }
        Shard::Move { dir, to } => {
            client.order(&Order::MoveDirectory { dir: dir.clone(), to: *to })?;
            out.line(
                || format!("`{dir}` goes to shard {to}: see `holdfast shard ls`"),
                || json!({"dir": dir, "to": to}),
            )
        }
    }
}

/// One shard, for people.
pub fn line(part: &Part) -> String {
    let Part { shard, index, files, bytes, directories, coming } = part;
    let mut text = format!("shard {shard}: at {index}, {files} files, {}", format_bytes(*bytes));
    match directories.is_empty() {
        true if *shard == 0 => text.push_str(", keeps what no other does"),
        true => {}
        false => text.push_str(&format!(", keeps /{}", directories.join(", /"))),
    }
    if !coming.is_empty() {
        text.push_str(&format!(", is to keep /{}", coming.join(", /")));
    }
    text
}

/// One shard, for programs.
pub fn object(part: &Part) -> Value {
    json!({
        "shard": part.shard, "index": part.index.0, "files": part.files, "bytes": part.bytes,
        "directories": part.directories, "coming": part.coming,
    })
}
