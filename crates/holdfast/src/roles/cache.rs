//! The cache, on memcached's port.

use super::{Announcement, Context, Metrics, Role, threads_of_a_port};
use holdfast_base::Result;
use holdfast_cache::{Server, Settings};
use holdfast_env::RealRng;
use serde_json::json;

struct CacheRole {
    server: Server,
    has_certificates: bool,
}

/// Nothing where `cache_port` is 0.
pub fn start(context: &Context<'_>) -> Result<Option<Box<dyn Role>>> {
    let (config, machine) = (context.config, &context.node.machine);
    let Some(address) = config.address(config.cache_port) else { return Ok(None) };
    let settings = Settings {
        tcp: vec![address],
        memory_bytes: config.cache_bytes() as usize,
        connections_max: context.places.cache,
        threads: threads_of_a_port(),
        certificates: context.certificates.clone(),
        ..Settings::default()
    };
    let server = Server::start(settings, machine.clock.clone(), &RealRng, &machine.disk)
        .map_err(|e| e.context("start the cache (`cache_port`, 0 for none)"))?;
    let has_certificates = context.certificates.is_some();
    Ok(Some(Box::new(CacheRole { server, has_certificates })))
}

impl Role for CacheRole {
    fn announce(&self, said: &mut Announcement) {
        let Some(address) = self.server.tcp_addresses().first() else { return };
        let open = format!("{address}, open to every user of this machine");
        said.listens("cache (memcached)", open);
        if self.has_certificates {
            said.listens("", "over TLS to who shows a certificate of the node's authorities");
        }
        said.fields.insert("cache".into(), json!(address.to_string()));
    }

    fn metrics(&self) -> Option<Metrics> {
        let (store, shared) = (self.server.store.clone(), self.server.shared.clone());
        Some(Box::new(move |registry| crate::cache::register_metrics(registry, &store, &shared)))
    }

    fn end(self: Box<Self>) -> Result<()> {
        drop(self.server);
        Ok(())
    }
}
