//! Regions in virtual time: their messages, their logs' appends, their clients, and what goes wrong
//! with all of these. The same seed gives the same run. Judged by [`check`] and [`linear`].

pub mod caches;
pub mod check;
pub mod distance;
pub mod faults;
pub mod figures;
pub mod histories;
pub mod linear;
pub mod world;
