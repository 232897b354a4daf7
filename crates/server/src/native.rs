//! The service behind every native connection: takes each request of a batch to the route that its
//! operation has, what memory answers first, then what waits for a disk or the log. Runs on reactor
//! threads and never blocks.

use crate::admin::Admin;
use crate::logs::Logs;
use crate::nodes::Nodes;
use crate::route::{AtOnce, Face, Later, Request, Right, Rights, Route, Within};
use holdfast_base::frame::{Header, STALE};
use holdfast_base::{Error, Kind, Result};
use holdfast_env::clients::{Seat, Slowed};
use holdfast_env::net::{Batch, BodyTarget, Response, Role, Service, Who, Witness};
use holdfast_env::{Budget, Clients, Secret, planted};
use holdfast_node::{Audit, Condition, Deed, Node};
use holdfast_wire::admin::Status;
use std::ops::Range;
use std::sync::Arc;

/// Serves one node: what every node answers, and the faces that it was given.
pub struct Native {
    node: Arc<Node>,
    admin: Arc<Admin>,
    nodes: Arc<Nodes>,
    routes: Routes,
    /// Where routes that say so are written down.
    audit: Option<Arc<Audit>>,
}

/// The one table from operations to what answers them.
struct Routes {
    routes: Vec<Route>,
    /// Of every opcode the place of its route in `routes`, plus one; 0 for none. Looked at for each
    /// request: look-ups come by the million.
    places: Box<[u8; 1 << 16]>,
}

impl Routes {
    fn add(&mut self, route: Route) {
        let opcode = route.opcode as usize;
        // What memory answers is answered before anybody looks at its meta.
        let is_checked = route.right == Right::Node || route.check.is_some();
        assert!(!is_checked || route.at_once.is_none(), "operation {opcode:#06x} is checked first");
        assert!(self.places[opcode] == 0, "operation {opcode:#06x} has one route");
        self.routes.push(route);
        self.places[opcode] = u8::try_from(self.routes.len()).expect("a node has some 60 routes");
    }

    fn of(&self, opcode: u16) -> Option<&Route> {
        match self.places[opcode as usize] {
            0 => None,
            place => Some(&self.routes[place as usize - 1]),
        }
    }

    /// What answers the operation from memory, for somebody who may ask for it.
    fn at_once(&self, opcode: u16, rights: Rights) -> Option<&Arc<dyn AtOnce>> {
        self.of(opcode).filter(|route| rights.allow(route.right))?.at_once.as_ref()
    }

    /// Requests from `first` on that the same value answers from memory, if any does.
    fn run(
        &self,
        batch: &Batch<'_>,
        first: usize,
        rights: Rights,
    ) -> Option<(&dyn AtOnce, Range<usize>)> {
        let at_once = self.at_once(batch.header(first).opcode, rights)?;
        let mut end = first + 1;
        while end < batch.len()
            && self
                .at_once(batch.header(end).opcode, rights)
                .is_some_and(|next| Arc::ptr_eq(next, at_once))
        {
            end += 1;
        }
        Some((&**at_once, first..end))
    }
}

impl Native {
    /// Without a face yet; `dev`: takes orders that only a development cluster should.
    pub fn new(node: Arc<Node>, budget: Arc<Budget>, dev: bool) -> Native {
        let admin = Arc::new(Admin::new(node.clone(), budget, dev));
        let nodes = Arc::new(Nodes::new(node.clone()));
        let logs = Arc::new(Logs::new(node.clone()));
        let routes = Routes { routes: Vec::new(), places: Box::new([0; 1 << 16]) };
        Native { node, admin: admin.clone(), nodes: nodes.clone(), routes, audit: None }
            .with(admin)
            .with(nodes)
            .with(logs)
    }

    /// Makes tokens, which follow from the cluster's secret; without one none are made.
    pub fn with_tokens_of(self, secret: &Secret) -> Native {
        self.admin.makes_tokens_of(secret);
        self
    }

    /// Writes down what is done that changes something.
    pub fn with_audit(self, audit: Arc<Audit>) -> Native {
        Native { audit: Some(audit), ..self }
    }

    /// Slows each client with a name down to what it may take; without them nobody is.
    pub fn with_limits_of(self, clients: &Arc<Clients>) -> Native {
        self.admin.knows_clients(clients);
        self
    }

    /// What clients have taken lately.
    pub fn clients(&self) -> &Arc<Clients> {
        self.admin.clients()
    }

    /// Serves a face as well. Its operations must have no other route: that is a bug.
    pub fn with(mut self, face: Arc<impl Face + ?Sized>) -> Native {
        face.routes().into_iter().for_each(|route| self.routes.add(route));
        self
    }

    /// What this process may hold for all of its clients.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.admin.budget
    }

    /// What `holdfast status` shows of this node.
    pub fn status(&self) -> Result<Status> {
        self.admin.status_now()
    }

    /// What keeps this node from all of its work; empty is well.
    pub fn conditions(&self) -> Vec<Condition> {
        self.admin.conditions()
    }

    /// Which clients were slowed within the last minute.
    pub fn slowed(&self) -> Vec<Slowed> {
        self.admin.slowed_now()
    }

    /// Answers the nodes that wait for entries: to be called before the server is shut down, which
    /// otherwise waits for them.
    pub fn release_peers(&self) {
        self.nodes.release();
    }

    /// The one place where a right is asked for, before a request's message is read.
    fn check(&self, route: &Route, meta: &[u8], who: &Who, within: Option<&Within>) -> Result<()> {
        if let Some(e) = refusal(route, who, within) {
            return Err(e);
        }
        if let (Some(within), Some(allows)) = (within, &route.allows)
            && !planted!("server.rules-not-asked")
        {
            allows(meta, within)?;
        }
        if let (Right::Node, Who::Named(named)) = (route.right, who) {
            self.node.check_sender(named, route.opcode, meta)?;
        }
        route.check.as_ref().map_or(Ok(()), |check| check(meta, who))
    }

    /// What the audit trail is told of a request, if its route says so. Of what a node passes on for
    /// a client, the client's own node has told.
    fn deed(&self, route: &Route, batch: &Batch<'_>, i: usize) -> Option<(Arc<Audit>, Deed)> {
        let (matters, tells) = route.audited.as_ref()?;
        let audit = self.audit.as_ref().filter(|audit| audit.wants(matters(batch.meta(i))))?;
        let who = match batch.who() {
            who if who.is_node() => return None,
            Who::Owner => "owner".to_owned(),
            Who::Named(named) => {
                let kind = if named.role == Role::Token { "token" } else { "certificate" };
                format!("{kind} {}", named.holder())
            }
            _ => "secret".to_owned(),
        };
        let (operation, what) = tells(batch.meta(i))?;
        let request = format!("{:x}-{:x}", batch.connection().0, batch.header(i).request_id);
        let operation = operation.to_owned();
        Some((audit.clone(), Deed { who, address: batch.origin(), request, operation, what }))
    }

    /// What a client with a name may do, request by request; nothing for one that may do nothing,
    /// and for all others, whose rights are the same for all requests.
    fn within(&self, who: &Who) -> Option<Within> {
        match who {
            Who::Named(named) if !who.is_node() => {
                self.admin.heard_from(&named.name);
                let rules = self.node.rules_of(named);
                (!rules.is_empty()).then(|| Within { client: named.holder(), rules })
            }
            _ => None,
        }
    }
}

/// Whether rules can allow what this route does.
fn is_by_rule(route: &Route) -> bool {
    matches!(route.right, Right::Data | Right::Admin) && route.allows.is_some()
}

/// What somebody hears who is known, and lacks the right.
fn refusal(route: &Route, who: &Who, within: Option<&Within>) -> Option<Error> {
    if Rights::of(who).allow(route.right) || planted!("file.clients-as-nodes") {
        return None;
    }
    if within.is_some() && is_by_rule(route) {
        // Which requests they allow is in each of them.
        return None;
    }
    let (doing, right) = (format!("carry out operation {:#06x}", route.opcode), route.right);
    Some(Error::denied(match (right, who) {
        (Right::Node, _) => {
            format!("{doing}: nodes of the cluster alone ask for it: connect as one")
        }
        (_, Who::Named(named)) => format!(
            "{doing}: it takes the right `{}`, which `{}` does not have: ask whoever looks after the cluster (`holdfast token create`)",
            right.name(),
            named.name
        ),
        _ => format!("{doing}: it takes the right `{}`", right.name()),
    }))
}

fn unknown(opcode: u16) -> Error {
    Error::unsupported(format!(
        "carry out operation {opcode:#06x}: this node does not know it; use matching builds"
    ))
}

impl Service for Native {
    fn body_target(&self, who: &Who, header: &Header, meta: &[u8]) -> BodyTarget {
        let Some(route) = self.routes.of(header.opcode) else { return BodyTarget::Buffer };
        let Some(target) = &route.target else { return BodyTarget::Buffer };
        // Where a body goes is not for everybody to reserve.
        if !Rights::of(who).allow(route.right)
            && let Err(e) = self.check(route, meta, who, self.within(who).as_ref())
        {
            return BodyTarget::Refuse(e);
        }
        target(meta, header.body_bytes)
    }

    fn check_standing(&self, who: &Who) -> Result<()> {
        match who {
            Who::Named(named) => self.node.check_standing(named),
            _ => Ok(()),
        }
    }

    fn seat(&self, who: &Who, now_ns: u64) -> Result<Option<Seat>> {
        match who {
            // Of whatever token or certificate of its name.
            Who::Named(named) if !who.is_node() => self.clients().seat(&named.name, now_ns),
            _ => Ok(None),
        }
    }

    fn refuses(&self, who: &Who, opcode: u16) -> Option<Error> {
        refusal(self.routes.of(opcode)?, who, self.within(who).as_ref())
    }

    fn is_for_nodes(&self, opcode: u16) -> bool {
        self.routes.of(opcode).is_some_and(|route| route.right == Right::Node)
    }

    fn label(&self) -> u32 {
        if self.node.is_behind() { STALE } else { 0 }
    }

    fn handle(&self, batch: &mut Batch<'_>) {
        let rights = Rights::of(batch.who());
        let within = self.within(batch.who());
        let mut later = Later::default();
        let mut i = 0;
        while i < batch.len() {
            if let Some((at_once, run)) = self.routes.run(batch, i, rights) {
                i = run.end;
                at_once.answer(batch, run, &mut later);
                continue;
            }
            match self.routes.of(batch.header(i).opcode) {
                Some(route)
                    if let (Some(within), Some(at_once)) = (&within, &route.at_once)
                        && is_by_rule(route) =>
                {
                    at_once.answer_within(batch, i, within, &mut later);
                }
                Some(route) => later.wait(i, (route.answer_bytes)(batch.meta(i))),
                None => batch.reply_error(i, &unknown(batch.header(i).opcode)),
            }
            i += 1;
        }
        let who = batch.who();
        for (i, answer_bytes) in later.into_requests() {
            let opcode = batch.header(i).opcode;
            let route = self.routes.of(opcode).expect("what was put off has a route");
            let witness = self.deed(route, batch, i).map(|(audit, deed)| {
                let witness = move |outcome: Option<&Error>, answered| {
                    audit.record(&deed, outcome, answered);
                };
                Box::new(witness) as Witness
            });
            if let Err(e) = self.check(route, batch.meta(i), who, within.as_ref()) {
                // A node that spoke for another one may have its own certificate by now, which a new
                // connection shows.
                let ends = matches!((route.right, who), (Right::Node, Who::Named(_)))
                    && who.is_node()
                    && e.kind == Kind::Denied;
                match witness {
                    // It is written down before anybody is told, as what is done is.
                    Some(witness) => {
                        let mut reply = batch.defer(i);
                        reply.witness(witness);
                        reply.send(Response::error(e.clone()));
                    }
                    None => batch.reply_error(i, &e),
                }
                if ends {
                    batch.end(e);
                }
                continue;
            }
            // Else it comes again.
            let Some(mut reply) = batch.defer_expecting(i, answer_bytes) else { continue };
            if let Some(witness) = witness {
                reply.witness(witness);
            }
            let body = batch.take_body(i);
            let within = within.clone();
            (route.run)(Request { opcode, meta: batch.meta(i), body, reply, within });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::panic::catch_unwind;

    struct Nothing;

    impl AtOnce for Nothing {
        fn answer(&self, _: &mut Batch<'_>, _: Range<usize>, _: &mut Later) {}
    }

    fn routes() -> Routes {
        Routes { routes: Vec::new(), places: Box::new([0; 1 << 16]) }
    }

    #[test]
    fn every_opcode_leads_to_its_own_route_or_to_none() {
        let (mut routes, mut model) = (routes(), BTreeMap::new());
        // The first and the last operation, neighbours, and as many as there is room for.
        for opcode in (0..252).map(|n| n * 257).chain([u16::MAX - 2, u16::MAX - 1, u16::MAX]) {
            let right = Right::ALL[opcode as usize % 4];
            routes.add(Route::new(opcode, right, |_| ()));
            assert_eq!(model.insert(opcode, right), None);
        }
        for opcode in 0..=u16::MAX {
            let found = routes.of(opcode).map(|route| (route.opcode, route.right));
            assert_eq!(found, model.get(&opcode).map(|right| (opcode, *right)));
        }
        let one_more = catch_unwind(std::panic::AssertUnwindSafe(|| {
            routes.add(Route::new(1, Right::Data, |_| ()));
        }));
        assert!(one_more.is_err(), "a place is a byte");
    }

    #[test]
    fn an_operation_has_one_route() {
        let twice = catch_unwind(|| {
            let mut routes = routes();
            routes.add(Route::new(7, Right::Data, |_| ()));
            routes.add(Route::new(7, Right::Data, |_| ()));
        });
        assert!(twice.is_err());
    }

    /// Memory answers a batch before anybody looks at its messages: such a route would let
    /// everybody in who has the right.
    #[test]
    fn what_is_checked_is_not_answered_from_memory_first() {
        let memory = Arc::new(Nothing);
        let for_nodes = || Route::new(7, Right::Node, |_| ());
        let checked = || Route::new(7, Right::Data, |_| ()).check(|_, _| Ok(()));
        for route in [for_nodes as fn() -> Route, checked] {
            routes().add(route());
            let route = route().at_once(&memory);
            let added = catch_unwind(std::panic::AssertUnwindSafe(|| routes().add(route)));
            assert!(added.is_err());
        }
    }
}
