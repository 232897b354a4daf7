//! Finds alpha from what a person allows: by how much recovery may raise the 90th percentile of
//! answers to readers. Learns what is usual while nothing is copied, then takes more of the links
//! bit by bit, and gives way fast. A core.

use super::terms::ALPHA_PER_MILLE;
use holdfast_wire::admin::RecoverySettings;

/// Time between two looks, and between two questions while nothing is copied.
const LOOK_NS: u64 = 1_000_000_000;
const QUIET_NS: u64 = 2_000_000_000;
/// Fewer answers say nothing of a 90th percentile.
const ANSWERS_MIN: u64 = 20;
/// Up by so much a look, down by this share.
const UP_PER_MILLE: u32 = 10;
const DOWN_PERCENT: u32 = 10;
/// Alpha stays between; the floor of eq. 1 holds below.
const LOWEST: u32 = 200;
const HIGHEST: u32 = 950;
/// Share of a new look in what is usual, and in what is now.
const SMOOTH_QUIET: f64 = 0.2;
const SMOOTH_NOW: f64 = 0.5;
/// Looks after giving way, in which the links empty and the samples with them.
const PATIENCE: u32 = 3;

#[derive(Debug, Default)]
pub struct Budget {
    alpha: u32,
    next_look_ns: u64,
    next_quiet_ns: u64,
    /// Microseconds, while nothing is copied and now.
    quiet_us: Option<f64>,
    now_us: Option<f64>,
    patience: u32,
}

fn smooth(old: Option<f64>, new: u32, share: f64) -> Option<f64> {
    Some(old.map_or(f64::from(new), |old| old + share * (f64::from(new) - old)))
}

impl Budget {
    /// Alpha in thousandths, from now on. `answers`: the 90th percentile in microseconds and of
    /// how many.
    pub fn step(
        &mut self,
        now_ns: u64,
        answers: (u32, u64),
        copying: bool,
        settings: RecoverySettings,
    ) -> u32 {
        let said = match settings.alpha_per_mille {
            0 => ALPHA_PER_MILLE,
            alpha => alpha,
        };
        if settings.p90_budget_percent == 0 || self.alpha == 0 {
            self.alpha = said;
        }
        let (p90_us, count) = answers;
        if now_ns < self.next_look_ns || count < ANSWERS_MIN {
            return self.alpha;
        }
        self.next_look_ns = now_ns + LOOK_NS;
        if !copying {
            self.quiet_us = smooth(self.quiet_us, p90_us, SMOOTH_QUIET);
            self.now_us = None;
            return self.alpha;
        }
        if self.patience > 0 {
            self.patience -= 1;
            return self.alpha;
        }
        self.now_us = smooth(self.now_us, p90_us, SMOOTH_NOW);
        if let (Some(quiet), Some(now), 1..) =
            (self.quiet_us, self.now_us, settings.p90_budget_percent)
        {
            let budget = f64::from(settings.p90_budget_percent) / 100.0;
            if now > quiet * (1.0 + budget) {
                self.alpha = (self.alpha * (100 - DOWN_PERCENT) / 100).max(LOWEST);
                (self.now_us, self.patience) = (Some(quiet), PATIENCE);
            } else {
                self.alpha = (self.alpha + UP_PER_MILLE).min(HIGHEST);
            }
        }
        self.alpha
    }

    /// Whether it is time to ask nodes how they are while nothing is copied.
    pub fn wants_quiet(&mut self, now_ns: u64) -> bool {
        let wants = now_ns >= self.next_quiet_ns;
        if wants {
            self.next_quiet_ns = now_ns + QUIET_NS;
        }
        wants
    }

    /// Now and usually, in microseconds; 0 where it is not known.
    pub fn seen_us(&self) -> (u32, u32) {
        let us = |seen: Option<f64>| seen.map_or(0, |us| us as u32);
        (us(self.now_us), us(self.quiet_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alpha_rises_while_answers_are_as_usual_and_falls_fast_when_they_are_not() {
        let settings = RecoverySettings { p90_budget_percent: 10, ..Default::default() };
        let mut budget = Budget::default();
        let mut second = 0;
        let mut step = |budget: &mut Budget, us: u32, copying| {
            second += 1;
            budget.step(second * LOOK_NS, (us, 100), copying, settings)
        };
        for _ in 0..10 {
            assert_eq!(step(&mut budget, 1000, false), ALPHA_PER_MILLE);
        }
        // A link that suffers above alpha 0.8.
        let mut alpha = ALPHA_PER_MILLE;
        let mut history = Vec::new();
        for _ in 0..100 {
            let us = if alpha > 800 { 3000 } else { 1050 };
            alpha = step(&mut budget, us, true);
            history.push(alpha);
        }
        assert!(*history.iter().max().unwrap() <= 840, "{history:?}");
        let settled = &history[20..];
        let mean = settled.iter().sum::<u32>() / settled.len() as u32;
        assert!((700..800).contains(&mean), "{mean} {history:?}");
        // Without a budget it is what was said, at once.
        let settings = RecoverySettings { alpha_per_mille: 650, ..Default::default() };
        assert_eq!(budget.step(0, (0, 0), true, settings), 650);
    }

    #[test]
    fn without_enough_answers_nothing_is_learned() {
        let settings = RecoverySettings { p90_budget_percent: 1, ..Default::default() };
        let mut budget = Budget::default();
        for second in 1..20 {
            budget.step(second * LOOK_NS, (1000 * second as u32, 5), second > 10, settings);
        }
        assert_eq!((budget.alpha, budget.seen_us()), (ALPHA_PER_MILLE, (0, 0)));
    }
}
