//! `stats`: what the counters add up to, in memcached's words.

use crate::engine::Engine;
use crate::out::Out;
use crate::settings::{Shared, VERSION};
use crate::stats::Totals;
use crate::store::Store;
use holdfast_cache_client::protocol::words::Words;
use std::fmt::Display;

pub fn stats(engine: &mut Engine, words: &Words<'_>, out: &mut Out) {
    let (store, shared) = (&engine.store, &engine.shared);
    let totals = store.totals().since(&shared.before());
    match words.get(1) {
        b"" => general(store, shared, &totals, &mut |name, value| stat(out, name, value)),
        b"settings" => settings(shared, &mut |name, value| stat(out, name, value)),
        b"items" => items(&totals, &mut |name, value| stat(out, name, value)),
        b"slabs" => slabs(store, &mut |name, value| stat(out, name, value)),
        b"sizes" => stat(out, "sizes_status", &"disabled"),
        b"conns" => stat(out, "connections", &totals.curr_connections),
        b"reset" => {
            *shared.before() = store.totals();
            return out.push(b"RESET\r\n");
        }
        b"detail" => {
            return out.push(b"CLIENT_ERROR usage: stats detail on|off|dump\r\n");
        }
        b"cachedump" => return out.push(b"CLIENT_ERROR stats cachedump not allowed\r\n"),
        _ => return out.push(b"ERROR\r\n"),
    }
    out.push(b"END\r\n");
}

fn stat(out: &mut Out, name: &str, value: &dyn Display) {
    out.push(format!("STAT {name} {value}\r\n").as_bytes());
}

type Say<'a> = &'a mut dyn FnMut(&str, &dyn Display);

/// The general statistics, by memcached's names.
pub fn general(store: &Store, shared: &Shared, totals: &Totals, say: Say<'_>) {
    let settings = &shared.settings;
    let (lines, index_bytes) = store.index_size();
    say("pid", &shared.process_id);
    say("uptime", &shared.uptime_s());
    say("time", &(shared.clock.unix_ms() / 1000));
    say("version", &VERSION);
    say("pointer_size", &usize::BITS);
    let cpu = holdfast_env::local::cpu_seconds();
    say("rusage_user", &format_args!("{:.6}", cpu.0));
    say("rusage_system", &format_args!("{:.6}", cpu.1));
    say("max_connections", &settings.connections_max);
    say("curr_connections", &totals.curr_connections);
    say("total_connections", &totals.total_connections);
    say("rejected_connections", &totals.rejected_connections);
    say("connection_structures", &totals.curr_connections);
    say("response_obj_bytes", &totals.connection_bytes);
    say("cmd_get", &totals.cmd_get);
    say("cmd_set", &totals.cmd_set);
    say("cmd_flush", &totals.cmd_flush);
    say("cmd_touch", &totals.cmd_touch);
    say("cmd_meta", &totals.cmd_meta);
    say("get_hits", &totals.get_hits);
    say("get_misses", &totals.get_misses);
    say("get_expired", &totals.get_expired);
    say("get_flushed", &totals.get_flushed);
    say("delete_misses", &totals.delete_misses);
    say("delete_hits", &totals.delete_hits);
    say("incr_misses", &totals.incr_misses);
    say("incr_hits", &totals.incr_hits);
    say("decr_misses", &totals.decr_misses);
    say("decr_hits", &totals.decr_hits);
    say("cas_misses", &totals.cas_misses);
    say("cas_hits", &totals.cas_hits);
    say("cas_badval", &totals.cas_badval);
    say("touch_hits", &totals.touch_hits);
    say("touch_misses", &totals.touch_misses);
    say("store_too_large", &totals.store_too_large);
    say("store_no_memory", &totals.store_no_memory);
    say("auth_cmds", &totals.auth_cmds);
    say("auth_errors", &totals.auth_errors);
    say("idle_kicks", &totals.idle_kicks);
    say("ssl_handshake_errors", &totals.ssl_handshake_errors);
    say("bytes_read", &totals.bytes_read);
    say("bytes_written", &totals.bytes_written);
    say("limit_maxbytes", &store.limit);
    say("accepting_conns", &1);
    say("threads", &settings.threads);
    say("conn_yields", &totals.conn_yields);
    say("hash_power_level", &lines.ilog2());
    say("hash_bytes", &index_bytes);
    say("hash_is_expanding", &0);
    say("curr_items", &totals.items);
    say("total_items", &totals.total_items);
    say("bytes", &totals.bytes);
    say("memory_bytes", &store.memory_bytes());
    say("evictions", &totals.evictions);
    say("evicted_unfetched", &totals.evicted_unfetched);
    say("reclaimed", &totals.reclaimed);
    say("moved", &totals.moved);
    say("udp_requests", &totals.udp_requests);
    say("udp_datagrams_sent", &totals.udp_datagrams_sent);
    say("udp_refused", &totals.udp_refused);
}

fn settings(shared: &Shared, say: Say<'_>) {
    let settings = &shared.settings;
    let on = |is: bool| if is { "on" } else { "off" };
    let port = |addresses: &[std::net::SocketAddr]| addresses.first().map_or(0, |a| a.port());
    say("maxbytes", &settings.memory_bytes);
    say("maxconns", &settings.connections_max);
    say("tcpport", &port(&settings.tcp));
    say("udpport", &port(&settings.udp));
    let inter: Vec<String> = settings.tcp.iter().map(|a| a.ip().to_string()).collect();
    say("inter", &inter.join(","));
    say("verbosity", &shared.verbose.load(std::sync::atomic::Ordering::Relaxed));
    say("evictions", &on(settings.evicts));
    let socket = settings.unix.as_ref().map_or("NULL".to_owned(), |p| p.display().to_string());
    say("domain_socket", &socket);
    say("umask", &format_args!("{:o}", settings.unix_mode));
    say("num_threads", &settings.threads);
    say("reqs_per_event", &settings.requests_per_event);
    say("cas_enabled", &if settings.cas { "yes" } else { "no" });
    say("tcp_backlog", &settings.backlog);
    say("auth_enabled_ascii", &if settings.users.is_some() { "yes" } else { "no" });
    say("auth_enabled_sasl", &"no");
    say("item_size_max", &settings.item_bytes_max);
    say("flush_enabled", &if settings.flush { "yes" } else { "no" });
    say("shutdown_command", &if settings.shutdown_command { "yes" } else { "no" });
    say("idle_timeout", &settings.idle_timeout_s);
    say("binding_protocol", &"ascii");
    say("ssl_enabled", &if settings.tls.is_some() { "yes" } else { "no" });
    if let Some(tls) = &settings.tls {
        say("ssl_chain_cert", &tls.chain.display());
        say("ssl_key", &tls.key.display());
    }
    let file = settings.file.as_ref().map_or("NULL".to_owned(), |file| file.display().to_string());
    say("memory_file", &file);
}

/// Memory is not divided by size: there is one class, 1.
fn items(totals: &Totals, say: Say<'_>) {
    if totals.items == 0 {
        return;
    }
    say("items:1:number", &totals.items);
    say("items:1:mem_requested", &totals.bytes);
    say("items:1:evicted", &totals.evictions);
    say("items:1:evicted_unfetched", &totals.evicted_unfetched);
    say("items:1:outofmemory", &totals.store_no_memory);
    say("items:1:reclaimed", &totals.reclaimed);
}

fn slabs(store: &Store, say: Say<'_>) {
    let (segments, bytes) = store.segments_in_use();
    say("1:chunk_size", &bytes);
    say("1:chunks_per_page", &1);
    say("1:total_pages", &segments);
    say("1:total_chunks", &segments);
    say("active_slabs", &u32::from(segments > 0));
    say("total_malloced", &(segments * bytes));
}
