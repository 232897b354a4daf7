//! Scribe: opens the categories that there are, and serves Scribe's clients on this machine, where that is
//! switched on.

use super::{Announcement, Context, Metrics, Role, Rounds};
use holdfast_base::Result;
use holdfast_client::{Client, ClientOptions, Endpoint};
use holdfast_command::files::SOCKET;
use holdfast_env::RealRng;
use holdfast_env::runtime::Runtime;
use holdfast_node::Watch;
use holdfast_scribe::door::{self, More, Service};
use holdfast_scribe::face::ScribeFace;
use holdfast_scribe::hours::{ClusterFiles, HourWriter};
use holdfast_scribe::intake::Intake;
use holdfast_scribe::stores::Stores;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use serde_json::json;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at categories' hours: so much later than the full hour the next one begins.
const HOURS: Duration = Duration::from_secs(1);

struct ScribeRole {
    face: Arc<ScribeFace>,
    /// Writes hours of categories into files.
    hours: Rounds,
    door: Option<(Runtime, Arc<Service>)>,
}

/// Always there; `scribe_port` 0 leaves what agents send.
pub fn start(context: &Context<'_>) -> Result<Option<Box<dyn Role>>> {
    if let Err(e) = context.scribe.open_all() {
        context.node.report_finding(format!("open Scribe's categories: {e}"));
    }
    let port = context.config.scribe_port;
    let door = match port {
        0 => None,
        port => {
            // Its protocol asks nobody who they are: other machines send by an agent of their own.
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let since_s = (context.node.machine.clock.unix_ms() / 1000) as i64;
            let intake = Intake::start(context.scribe.clone())?;
            let service = Service::new(
                intake,
                (Stores::default(), Arc::new(RealRng)),
                since_s,
                More::default,
            );
            let (places, budget) = (context.places.scribe, context.budget.clone());
            let runtime = door::serve(address, service.clone(), places, budget)
                .map_err(|e| e.context("start Scribe's port (`scribe_port`, 0 for none)"))?;
            Some((runtime, service))
        }
    };
    let hours = write_hours(context)?;
    Ok(Some(Box::new(ScribeRole { face: context.scribe.clone(), hours, door })))
}

/// Through the node's own socket, as any client.
fn write_hours(context: &Context<'_>) -> Result<Rounds> {
    let socket = context.data.join(SOCKET);
    let connect =
        move || Client::connect(&Endpoint::Unix(socket.clone()), &ClientOptions::default());
    let mut writer = HourWriter::new(context.scribe.clone(), ClusterFiles::new(connect));
    let clock = context.node.machine.clock.clone();
    Rounds::start(context, ("scribe-hours", HOURS), move |_| writer.round(clock.unix_ms()))
}

impl Role for ScribeRole {
    fn health(&self) -> Option<Watch> {
        Some(self.hours.watch())
    }

    fn announce(&self, said: &mut Announcement) {
        let Some((runtime, _)) = &self.door else { return };
        let address = runtime.address();
        said.listens("scribe", format!("{address}, open to every user of this machine"));
        said.fields.insert("scribe".into(), json!(address.to_string()));
    }

    fn metrics(&self) -> Option<Metrics> {
        let face = self.face.clone();
        let service = self.door.as_ref().map(|(_, service)| service.clone());
        Some(Box::new(move |registry| {
            let lost = Family::<Vec<(&'static str, String)>, Gauge>::default();
            for (category, count) in face.lost() {
                lost.get_or_create(&vec![("category", category.name().to_owned())])
                    .set(count as i64);
            }
            registry.register(
                "scribe_lost_spools",
                "Spools that were erased before they said they were empty",
                lost,
            );
            let Some(service) = &service else { return };
            let family = Family::<Vec<(&'static str, String)>, Gauge>::default();
            for (name, count) in service.counters() {
                family.get_or_create(&vec![("counter", name)]).set(count);
            }
            registry.register("scribe", "Counts of Scribe's port, as it names them", family);
        }))
    }

    fn end(self: Box<Self>) -> Result<()> {
        self.hours.end();
        if let Some((door, service)) = self.door {
            drop(door);
            service.intake().end();
        }
        Ok(())
    }
}
