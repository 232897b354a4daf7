//! How the log's runtime drives the two views.

use crate::{ClusterCommand, ClusterOutcome, ClusterView, Command, Namespace};
use holdfast_base::codec::Encode;
use holdfast_base::ids::Index;
use holdfast_base::stream::{Source, Writer};
use holdfast_base::{Error, Kind, Result};
use holdfast_view::{Applied, Context, View};

fn applied(result: Result<Vec<u8>>) -> Applied {
    match result {
        Ok(bytes) => Applied::Ok(bytes),
        Err(Error { kind: Kind::Unsupported, message, .. }) => Applied::UnknownVersion(message),
        Err(refusal) => Applied::Refused(refusal),
    }
}

/// The name of a command: what stands in front of its fields.
fn name(command: Result<impl std::fmt::Debug>) -> String {
    match command {
        Ok(command) => {
            let text = format!("{command:?}");
            let end = text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
            text[..end].to_owned()
        }
        Err(e) => e.message,
    }
}

impl View for Namespace {
    const NAME: &'static str = "namespace";
    const VERSION: u32 = 1;

    fn begin(context: &Context) -> Namespace {
        Namespace::new(context.shard)
    }

    /// The result is the bytes of an [`crate::Outcome`].
    fn apply(&mut self, index: Index, command: &[u8]) -> Applied {
        applied(self.apply_bytes(index, command).map(|outcome| outcome.to_bytes()))
    }

    fn snapshot(&self, out: &mut Writer<'_>) {
        self.write(out);
    }

    fn describe(command: &[u8]) -> String {
        name(Command::from_entry(command))
    }

    fn restore(_: &Context, source: &mut Source<'_>) -> Result<Namespace> {
        Namespace::read(source)
    }
}

impl View for ClusterView {
    const NAME: &'static str = "cluster";
    const VERSION: u32 = 1;

    fn begin(_: &Context) -> ClusterView {
        ClusterView::default()
    }

    /// The result is that of [`ClusterOutcome::to_result`].
    fn apply(&mut self, index: Index, command: &[u8]) -> Applied {
        applied(self.apply_bytes(index, command).map(ClusterOutcome::to_result))
    }

    fn snapshot(&self, out: &mut Writer<'_>) {
        self.write(out);
    }

    fn describe(command: &[u8]) -> String {
        name(ClusterCommand::from_entry(command))
    }

    fn restore(_: &Context, source: &mut Source<'_>) -> Result<ClusterView> {
        ClusterView::read(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;

    #[test]
    fn an_unknown_version_stops_the_view_and_garbage_does_not() {
        let mut ns = Namespace::default();
        let mut apply = |bytes: &[u8]| View::apply(&mut ns, Index(1), bytes);
        let Applied::UnknownVersion(said) = apply(&[2, 1]) else { panic!("version 2 is unknown") };
        assert!(said.contains("version 2"), "{said}");
        let Applied::UnknownVersion(said) = apply(&[1, 99]) else { panic!("99 is unknown") };
        assert!(said.contains("command 99"), "{said}");
        assert!(matches!(apply(&[]), Applied::Refused(_)));
        assert!(matches!(apply(&[1]), Applied::Refused(_)));
        assert!(matches!(apply(&[1, 12]), Applied::Refused(_)));
        let progress = Outcome::Progress { steps: 0, more: false }.to_bytes();
        assert_eq!(apply(&[1, 12, 1, 0, 0, 0]), Applied::Ok(progress));
    }
}
