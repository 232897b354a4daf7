//! Scribe: opens the categories that there are, and serves Scribe's clients on this machine, where that is
//! switched on.

use super::{Announcement, Context, Metrics, Role, Rounds};
use crate::scribe::{ASIDE, read_stores};
use holdfast_base::Result;
use holdfast_client::{Client, ClientOptions, Endpoint};
use holdfast_command::files::SOCKET;
use holdfast_env::runtime::Runtime;
use holdfast_env::{RealDisk, RealRng};
use holdfast_log::Drive;
use holdfast_node::Watch;
use holdfast_scribe::aside;
use holdfast_scribe::door::{self, Service};
use holdfast_scribe::face::ScribeFace;
use holdfast_scribe::files::{Files, WithFiles};
use holdfast_scribe::hours::{ClusterFiles, HourWriter};
use holdfast_scribe::intake::Intake;
use holdfast_scribe::own_door::OwnDoor;
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
    let door = match context.config.scribe_port {
        0 => None,
        port => Some(own_door(context, port)?),
    };
    let hours = write_hours(context)?;
    Ok(Some(Box::new(ScribeRole { face: context.scribe.clone(), hours, door })))
}

/// Serves Scribe's clients on this machine.
fn own_door(context: &Context<'_>, port: u16) -> Result<(Runtime, Arc<Service>)> {
    // Its protocol asks nobody who they are: other machines send by an agent of their own.
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let clock = &context.node.machine.clock;
    let since_s = (clock.unix_ms() / 1000) as i64;
    let stores = read_stores(&context.config.scribe_stores)?;
    let place = aside::Place::open(Arc::new(RealDisk), &context.data.join(ASIDE), Drive::Threads);
    if let Err(e) = &place {
        // What can be taken is taken all the same.
        context.node.report_finding(format!("keep aside what Scribe's port never takes: {e}"));
    }
    let keeps = Arc::new(OwnDoor { keeps: context.scribe.clone(), aside: place.ok() });
    let files = Files::new(Arc::new(RealDisk), clock.clone(), stores.files().to_vec());
    let intake = Intake::start(Arc::new(WithFiles { others: keeps.clone(), files }))?;
    let more = move || keeps.more();
    let service = Service::new(intake, (stores, Arc::new(RealRng)), since_s, more);
    let (places, budget) = (context.places.scribe, context.budget.clone());
    let runtime = door::serve(address, service.clone(), places, budget)
        .map_err(|e| e.context("start Scribe's port (`scribe_port`, 0 for none)"))?;
    Ok((runtime, service))
}

/// Through the node's own socket, as any client.
fn write_hours(context: &Context<'_>) -> Result<Rounds> {
    let socket = context.data.join(SOCKET);
    // The next round asks again.
    let options = ClientOptions { patience: Duration::ZERO, ..ClientOptions::default() };
    let connect = move || Client::connect(&Endpoint::Unix(socket.clone()), &options);
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
