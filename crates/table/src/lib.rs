//! Tables whose records have a home in one of several regions, each region a cluster with a log of
//! its own. What a region decides is a stream that the others follow; a strong table is the same
//! stream, acknowledged when a majority holds it. docs/tables.md has the rules and what they cost.
//!
//! Sans-IO: [`tablet::Tablet`] folds one region's topic of a tablet, [`region::Region`] decides
//! around it. Neither has a clock, a file or a connection: ticks, messages and acknowledged
//! appends come in, effects go out. [`sim`] runs regions of them in virtual time; [`face`] serves
//! tables on a node, and [`regions`] is the way between regions.
#![forbid(unsafe_code)]

pub mod entry;
pub mod face;
pub mod ids;
pub mod message;
pub mod name;
pub mod record;
pub mod region;
pub mod regions;
pub mod sessions;
pub mod sim;
pub mod stream;
pub mod tablet;
pub mod tablets;
pub mod token;
pub mod view;
