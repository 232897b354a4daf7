//! What recovery is asked to keep to: how much of a link it may take beside the foreground (eq. 1 of
//! Dayu). Shared by the planner and by each node, so that both compute the same.

use holdfast_env::net::Flow;

/// Share of a link that foreground and recovery together may take, unless somebody says otherwise.
pub const ALPHA_PER_MILLE: u32 = 750;
/// B_min of the paper: 30 of 250 MB/s.
const FLOOR_PER_MILLE: u64 = 120;

/// What is asked of recovery; zeros for the defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    pub alpha_per_mille: u32,
    pub floor: u64,
    pub rate_max: u64,
    /// This node's share of its rack's link; 0 for no such limit.
    pub rack: Flow,
}

impl Terms {
    /// For what is not a node's own link: a rate that is asked of a node is asked of its link.
    pub fn without_rate(self) -> Terms {
        Terms { rate_max: 0, ..self }
    }

    /// Eq. 1 for one direction of a link, in bytes a second.
    pub fn allow(&self, link: u64, foreground: u64) -> u64 {
        let alpha = match self.alpha_per_mille {
            0 => ALPHA_PER_MILLE,
            alpha => alpha,
        } as u64;
        let floor = match self.floor {
            0 => link / 1000 * FLOOR_PER_MILLE,
            floor => floor,
        };
        let most = if self.rate_max == 0 { u64::MAX } else { self.rate_max };
        (link / 1000 * alpha).saturating_sub(foreground).max(floor).min(most).max(1)
    }
}
