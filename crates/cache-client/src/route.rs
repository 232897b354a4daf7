//! The router: memcached's protocol on one side, pools of servers on the other, by ketama; a
//! gutter pool for the keys of dead servers, a warm pool for the misses of a cold one. `router`
//! decides, `worker` owns the sockets, `holdfast route` calls [`Server`].

mod command;
mod plan;
mod recent;
mod router;
mod server;
#[cfg(test)]
mod tests;
mod worker;

pub use plan::{Pool, PoolPlan, RoutePlan};
pub use server::{Server, Settings};

/// What `version` says: clients compare it.
pub const VERSION: &str = concat!("1.6.18-holdfast-route-", env!("CARGO_PKG_VERSION"));
