//! Certificates that are renewed while the node runs: looks at their files, tells what came of it,
//! and says in `/health` as long as the newest ones cannot be used.

use super::{Context, Metrics, Role, Rounds};
use crate::credentials::NodeCredentials;
use holdfast_base::Result;
use holdfast_base::text::utc;
use holdfast_cert::{DAY_S, PeerName, WARN_DAYS};
use holdfast_env::event;
use holdfast_env::tls::{Certificates, Refreshed};
use holdfast_node::{Condition, Node, Watch};
use prometheus_client::metrics::gauge::Gauge;
use std::sync::Arc;
use std::time::Duration;

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);

struct CertificatesRole {
    rounds: Rounds,
    certificates: Arc<Certificates>,
}

/// Nothing where there are no certificates.
pub fn start(context: &Context<'_>) -> Result<Option<Box<dyn Role>>> {
    let Some(certificates) = context.certificates.clone() else { return Ok(None) };
    let (own, node) = (certificates.clone(), context.node.clone());
    let Some(credentials) = context.credentials.clone() else { return Ok(None) };
    let round = move |_| look(&own, &credentials, &node);
    let rounds = Rounds::start(context, ("certificates", LOOK), round)?;
    Ok(Some(Box::new(CertificatesRole { rounds, certificates })))
}

fn look(certificates: &Certificates, credentials: &NodeCredentials, node: &Node) {
    warn_in_time(certificates, node);
    let now_s = (node.machine.clock.unix_ms() / 1000) as i64;
    match certificates.refresh_if(&|leaf| credentials.check_renewed(leaf, now_s)) {
        Refreshed::Unchanged => {}
        Refreshed::Renewed => {
            let chain = certificates.files().chain.display();
            event!(TlsRenewed, format_args!("`{chain}` and the others are in force"));
        }
        Refreshed::Kept(why) => event!(TlsKept, why),
    }
}

/// When the node's certificate ends, in seconds since 1970.
fn until_s(certificates: &Certificates) -> Option<i64> {
    PeerName::of_certificate(&certificates.leaf_der()).ok().map(|certified| certified.not_after_s)
}

/// The day is in the sentence, so that `doctor` lists each certificate once.
fn warn_in_time(certificates: &Certificates, node: &Node) {
    let Some(until_s) = until_s(certificates) else { return };
    let now_s = (node.machine.clock.unix_ms() / 1000) as i64;
    if until_s - now_s < WARN_DAYS * DAY_S {
        node.report_finding(format!(
            "the certificate `{}` ends at {}: renew it (`holdfast cert renew`); until then nothing is lost, and then no other machine is answered",
            certificates.files().chain.display(),
            utc(until_s, ' ')
        ));
    }
}

impl Role for CertificatesRole {
    fn metrics(&self) -> Option<Metrics> {
        let certificates = self.certificates.clone();
        Some(Box::new(move |registry| {
            let until = Gauge::<i64>::default();
            until.set(until_s(&certificates).unwrap_or(0));
            let help = "When the node's certificate ends, in seconds since 1970";
            registry.register("certificate_until_seconds", help, until);
        }))
    }

    fn health(&self) -> Option<Watch> {
        let (stuck, certificates) = (self.rounds.watch(), self.certificates.clone());
        Some(Box::new(move || {
            let trouble = certificates.trouble();
            let trouble = trouble.map(|why| {
                let sentence = format!("{why}; the certificates from before are in force");
                Condition::new("certificates", sentence)
            });
            stuck().into_iter().chain(trouble).collect()
        }))
    }

    fn end(self: Box<Self>) -> Result<()> {
        self.rounds.end();
        Ok(())
    }
}
