//! Scribe: log messages of many machines, each once and in the order of its machine. A door that speaks
//! Thrift ([`call`], [`door`]), spools that number what they keep and forward it ([`spool`], [`agent`]),
//! carriers on the way ([`carry`]), and the topics of the log that take each batch once ([`view`], [`face`]). docs/decisions/0019 says why this
//! is enough.
#![forbid(unsafe_code)]

pub mod agent;
pub mod aside;
pub mod call;
pub mod carrier;
pub mod carry;
pub mod door;
pub mod face;
pub mod files;
pub mod gather;
pub mod hops;
pub mod hour;
pub mod hours;
pub mod intake;
pub mod names;
pub mod own_door;
pub mod reader;
pub mod resend;
pub mod spool;
pub mod store;
pub mod stores;
pub mod thrift;
pub mod view;
pub mod ways;
pub mod word;

/// What travels is read by clients, too.
pub use holdfast_wire::scribe::{batch, category};

const _: () = {
    assert!(category::TOPIC_BYTES_MAX <= holdfast_log::TOPIC_BYTES_MAX);
    assert!(
        holdfast_view::ENVELOPE_BYTES + batch::ENCODED_BYTES_MAX
            <= holdfast_base::limits::ENTRY_BYTES_MAX
    );
    assert!(batch::VERSION < reader::VERSION);
};

#[cfg(test)]
mod tests {
    use super::category::{CATEGORY_BYTES_MAX, Category};

    #[test]
    fn the_log_takes_each_category_s_topic() {
        for name in ["web", "-Web.v2_", &"W".repeat(CATEGORY_BYTES_MAX)] {
            holdfast_log::check_topic(&Category::new(name).unwrap().topic()).unwrap();
        }
    }
}
