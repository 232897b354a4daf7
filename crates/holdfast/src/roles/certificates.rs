//! Certificates that are renewed while the node runs: looks at their files, tells what came of it,
//! and says in `/health` as long as the newest ones cannot be used.

use super::{Context, Role, Rounds};
use holdfast_base::Result;
use holdfast_env::event;
use holdfast_env::tls::{Certificates, Refreshed};
use holdfast_node::{Condition, Watch};
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
    let own = certificates.clone();
    let rounds = Rounds::start(context, ("certificates", LOOK), move |_| look(&own))?;
    Ok(Some(Box::new(CertificatesRole { rounds, certificates })))
}

fn look(certificates: &Certificates) {
    match certificates.refresh() {
        Refreshed::Unchanged => {}
        Refreshed::Renewed => {
            let chain = certificates.files().chain.display();
            event!(TlsRenewed, format_args!("`{chain}` and the others are in force"));
        }
        Refreshed::Kept(why) => event!(TlsKept, why),
    }
}

impl Role for CertificatesRole {
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
