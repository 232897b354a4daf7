//! An old scribe.conf as stores in TOML. What has no equivalent here becomes a sentence in a comment, in front
//! of the store that had it. Pure.

use holdfast_base::{Error, Result};

/// A block of a scribe.conf, or all of it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Block {
    name: String,
    line: usize,
    keys: Vec<(String, String)>,
    blocks: Vec<Block>,
}

/// Stores in TOML, and sentences.
pub fn translate(conf: &str) -> Result<String> {
    let conf = parse(conf)?;
    let mut out = String::new();
    for (key, value) in &conf.keys {
        comment(&mut out, &of_all(key, value));
    }
    for block in &conf.blocks {
        if block.name != "store" {
            return Err(wrong(
                block.line,
                &format!("there is a <{}> outside of a store", block.name),
            ));
        }
        let mut notes = Vec::new();
        let mut keys = categories(block)?;
        keys.extend(store(block, &mut notes)?);
        if !out.is_empty() {
            out.push('\n');
        }
        notes.iter().for_each(|note| comment(&mut out, note));
        out.push_str("[[store]]\n");
        keys.iter().for_each(|(key, value)| out.push_str(&format!("{key} = {value}\n")));
    }
    Ok(out)
}

fn comment(out: &mut String, note: &str) {
    out.push_str(&format!("# {note}\n"));
}

fn wrong(line: usize, what: &str) -> Error {
    Error::invalid(format!("translate a scribe.conf: line {line}: {what}"))
}

fn parse(conf: &str) -> Result<Block> {
    let mut open = vec![Block::default()];
    for (at, line) in conf.lines().enumerate() {
        let (line, at) = (line.trim(), at + 1);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let shown = line.escape_debug();
        let tag = line.strip_prefix('<').and_then(|tag| tag.strip_suffix('>'));
        match (tag, line.split_once('=')) {
            (Some(tag), _) if tag.starts_with('/') => {
                let block = open.pop().filter(|block| block.name == tag[1..] && block.line > 0);
                let block = block.ok_or_else(|| wrong(at, &format!("`{shown}` ends nothing")))?;
                open.last_mut().expect("it was inside of one").blocks.push(block);
            }
            (Some(tag), _) => {
                open.push(Block { name: tag.to_owned(), line: at, ..Block::default() });
            }
            (None, Some((key, value))) => {
                let keys = &mut open.last_mut().expect("the whole is there").keys;
                keys.push((key.trim().to_owned(), value.trim().to_owned()));
            }
            (None, None) => {
                return Err(wrong(at, &format!("`{shown}` is neither KEY=VALUE nor a <block>")));
            }
        }
    }
    match open.len() {
        1 => Ok(open.remove(0)),
        _ => {
            let last = open.remove(open.len() - 1);
            Err(wrong(last.line, &format!("<{}> has no end", last.name)))
        }
    }
}

impl Block {
    fn get(&self, key: &str) -> Option<&str> {
        self.keys.iter().rev().find(|(known, _)| known == key).map(|(_, value)| &**value)
    }

    fn block(&self, name: &str) -> Option<&Block> {
        self.blocks.iter().find(|block| block.name == name)
    }
}

/// A setting of the whole server.
fn of_all(key: &str, value: &str) -> String {
    let what = match key {
        "port" => return format!("{key}={value}: give it to the agent: `--port {value}`."),
        "max_msg_per_second" => "the spool's bound is the limit (`--spool-size`)",
        "max_queue_size" => "what waits for a sync is bounded by itself",
        "check_interval" | "new_thread_per_category" | "num_thrift_server_threads" | "max_conn" => {
            "threads and connections need no setting"
        }
        _ => "there is nothing like it here",
    };
    format!("{key}={value}: {what}.")
}

type Keys = Vec<(&'static str, String)>;

fn text(value: &str) -> String {
    toml::Value::String(value.to_owned()).to_string()
}

fn categories(block: &Block) -> Result<Keys> {
    match (block.get("category"), block.get("categories")) {
        (Some(one), None) => Ok(vec![("category", text(one))]),
        (None, Some(all)) => {
            let all: Vec<String> = all.split_whitespace().map(text).collect();
            Ok(vec![("categories", format!("[{}]", all.join(", ")))])
        }
        (None, None) => Err(wrong(block.line, "the store has no category")),
        (Some(_), Some(_)) => Err(wrong(block.line, "the store has `category` and `categories`")),
    }
}

/// As an inline table.
fn inline(block: &Block, notes: &mut Vec<String>) -> Result<String> {
    let keys: Vec<String> =
        store(block, notes)?.into_iter().map(|(key, value)| format!("{key} = {value}")).collect();
    Ok(format!("{{ {} }}", keys.join(", ")))
}

fn store(block: &Block, notes: &mut Vec<String>) -> Result<Keys> {
    let kind = block.get("type").ok_or_else(|| wrong(block.line, "the store has no type"))?;
    let known: &[&str] = match kind {
        "file" | "thriftfile" | "multifile" | "thriftmultifile" => {
            &["file_path", "base_filename", "max_size", "rotate_period", "add_newlines", "fs_type"]
        }
        "bucket" => &["num_buckets", "bucket_type", "delimiter"],
        "multi" => &["report_success"],
        _ => &[],
    };
    for (key, value) in &block.keys {
        let is_known = ["category", "categories", "type"].contains(&key.as_str());
        if !is_known && !known.contains(&key.as_str()) {
            notes.push(of_store(key, value));
        }
    }
    match kind {
        "buffer" => buffer(block, notes),
        "network" => Ok(vec![("type", text("topic"))]),
        "null" => Ok(vec![("type", text("null"))]),
        "multi" => {
            if block.get("report_success").is_some_and(|value| value != "all") {
                notes
                    .push("report_success=any: here all stores have to take a message.".to_owned());
            }
            let stores = block.blocks.iter().filter(|inner| inner.name.starts_with("store"));
            let stores: Vec<String> =
                stores.map(|inner| inline(inner, notes)).collect::<Result<_>>()?;
            Ok(vec![("type", text("multi")), ("stores", format!("[{}]", stores.join(", ")))])
        }
        "bucket" => bucket(block, notes),
        "file" | "multifile" => Ok(file(block, notes)),
        "thriftfile" | "thriftmultifile" => {
            notes.push(format!("type={kind}: files have lines here, not Thrift's frames."));
            Ok(file(block, notes))
        }
        other => {
            notes.push(format!("type={other}: there is no such store here: its topic takes it."));
            Ok(vec![("type", text("topic"))])
        }
    }
}

/// A key that no type here has.
fn of_store(key: &str, value: &str) -> String {
    let what = match key {
        "remote_host" | "remote_port" | "service" | "smc_service" => {
            "name nodes of the cluster, or carriers, with `--to`"
        }
        "target_write_size" | "max_write_interval" | "must_succeed" => {
            "what came together is synced together, before OK"
        }
        "retry_interval"
        | "retry_interval_range"
        | "buffer_send_rate"
        | "replay_buffer"
        | "adaptive_backoff"
        | "max_random_offset"
        | "min_retry_interval"
        | "max_retry_interval" => "what is in the spool goes out as fast as it is taken",
        "timeout" | "use_conn_pool" => "connections need no setting",
        "create_symlink" => "no link leads to the newest file: it is the last by name",
        "rotate_hour" | "rotate_minute" => "hours and days end on time, in UTC",
        "bucket_subdir" | "bucket_offset" | "remove_key" | "bucket_range" => {
            "buckets are categories of their own, and messages stay as they are"
        }
        _ => "there is nothing like it here",
    };
    format!("{key}={value}: {what}.")
}

fn buffer(block: &Block, notes: &mut Vec<String>) -> Result<Keys> {
    let primary =
        block.block("primary").ok_or_else(|| wrong(block.line, "the buffer has no <primary>"))?;
    if block.block("secondary").is_some() {
        notes.push(match primary.get("type") {
            Some("network") => {
                "<secondary>: the agent's spool (`--spool`, `--spool-size`) is the buffer of all topics."
                    .to_owned()
            }
            _ => "<secondary>: where the primary takes nothing, clients are told to try later.".to_owned(),
        });
    }
    store(primary, notes)
}

fn file(block: &Block, notes: &mut Vec<String>) -> Keys {
    let mut keys = vec![("type", text("file"))];
    let path = block.get("file_path").unwrap_or("/tmp");
    keys.push(("file_path", text(path)));
    keys.extend(block.get("base_filename").map(|base| ("base_filename", text(base))));
    keys.extend(block.get("max_size").map(|size| ("max_size", text(size))));
    match block.get("rotate_period") {
        Some(period @ ("hourly" | "daily" | "never")) => keys.push(("rotate_period", text(period))),
        Some(other) => notes.push(format!(
            "rotate_period={other}: there is `hourly`, `daily` and `never`; and `max_size`."
        )),
        None => {}
    }
    if block.get("add_newlines").is_some_and(|value| value != "0") {
        keys.push(("add_newlines", "true".to_owned()));
    }
    if let Some(other) = block.get("fs_type").filter(|value| *value != "std") {
        notes.push(format!("fs_type={other}: files are of this machine."));
    }
    keys
}

fn bucket(block: &Block, notes: &mut Vec<String>) -> Result<Keys> {
    let mut keys = vec![("type", text("bucket"))];
    keys.extend(block.get("num_buckets").map(|buckets| ("num_buckets", buckets.to_owned())));
    match block.get("bucket_type") {
        Some("random") => keys.push(("bucket_type", text("random"))),
        kind => {
            if let Some(other) = kind.filter(|kind| *kind != "key_hash") {
                notes.push(format!("bucket_type={other}: the key's hash decides here."));
            }
            keys.push(("bucket_type", text("key_hash")));
            // Scribe has it as a number, a colon's unless set.
            let delimiter = block.get("delimiter").unwrap_or("58");
            match delimiter.parse::<u8>() {
                Ok(byte) if byte.is_ascii() && byte > 0 => {
                    keys.push(("delimiter", text(&char::from(byte).to_string())));
                }
                _ => notes.push(format!("delimiter={delimiter}: it is one character of ASCII.")),
            }
        }
    }
    notes.push("buckets are categories of their own, numbered from NAME_000 on.".to_owned());
    let mut numbered = block.blocks.iter().filter(|inner| inner.name.starts_with("bucket"));
    if numbered.clone().count() > 1 {
        notes.push("<bucket0> and so on: all buckets have the store of the first.".to_owned());
    }
    if let Some(inner) = numbered.next() {
        keys.push(("store", inline(inner, notes)?));
    }
    Ok(keys)
}
