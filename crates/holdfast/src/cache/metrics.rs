//! What the cache counted, in Prometheus' words: the same figures as `stats`, under
//! `holdfast_cache_`.

use holdfast_cache::Shared;
use holdfast_cache::store::Store;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;

/// Prometheus appends `_total` to counters; what would then be called like a level is renamed.
fn name_of(name: &str) -> &str {
    match name {
        "total_items" => "items_stored",
        "total_connections" => "connections_accepted",
        name => name,
    }
}

/// Adds one metric for each figure, with its value of this moment.
pub fn register(registry: &mut Registry, store: &Store, shared: &Shared) {
    let gauge = |registry: &mut Registry, name: &str, help: &str, value: u64| {
        let gauge = Gauge::<i64>::default();
        gauge.set(value as i64);
        registry.register(name, help, gauge);
    };
    store.totals().each(|name, value, is_level| {
        let (name, help) = (format!("cache_{}", name_of(name)), format!("`{name}` of `stats`"));
        if is_level {
            return gauge(registry, &name, &help, value);
        }
        let counter = Counter::<u64, AtomicU64>::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    });
    let memory = store.memory_bytes() as u64;
    gauge(registry, "cache_memory_bytes", "Memory of items and their index", memory);
    gauge(registry, "cache_limit_bytes", "What that may grow to", store.limit as u64);
    gauge(registry, "cache_uptime_seconds", "Seconds since the start", shared.uptime_s());
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_cache::Settings;
    use holdfast_env::{RealClock, poll::Waker};
    use std::sync::Arc;

    #[test]
    fn every_statistic_has_one_name() {
        let store = Store::new(8 << 20, 1, true, 1).unwrap();
        store.counters[0].get_hits.add(7);
        store.counters[1].items.add(3);
        let clock = Arc::new(RealClock::new());
        let shared = Shared::new(Settings::default(), clock, Waker::new().unwrap()).unwrap();
        let mut registry = Registry::with_prefix("holdfast");
        register(&mut registry, &store, &shared);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(text.contains("\nholdfast_cache_get_hits_total 7\n"), "{text}");
        assert!(text.contains("\nholdfast_cache_items 3\n"), "{text}");
        let mut names: Vec<&str> = text.lines().filter(|l| l.starts_with("# TYPE")).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "a name twice");
    }
}
