//! Round trips between regions, in microseconds.

/// How far regions are from each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distance {
    names: Vec<&'static str>,
    round_trips_us: Vec<Vec<u64>>,
}

impl Distance {
    /// Virginia, Oregon and Ireland, by published round trips.
    pub fn three() -> Distance {
        Distance {
            names: vec!["Virginia", "Oregon", "Ireland"],
            round_trips_us: vec![
                vec![0, 87_000, 80_500],
                vec![87_000, 0, 137_000],
                vec![80_500, 137_000, 0],
            ],
        }
    }

    /// The three, Tokyo and São Paulo; the round trips of these two are rounded ones.
    pub fn five() -> Distance {
        Distance {
            names: vec!["Virginia", "Oregon", "Ireland", "Tokyo", "São Paulo"],
            round_trips_us: vec![
                vec![0, 87_000, 80_500, 160_000, 115_000],
                vec![87_000, 0, 137_000, 97_000, 175_000],
                vec![80_500, 137_000, 0, 212_000, 178_000],
                vec![160_000, 97_000, 212_000, 0, 256_000],
                vec![115_000, 175_000, 178_000, 256_000, 0],
            ],
        }
    }

    /// How many regions there are.
    pub fn regions(&self) -> usize {
        self.names.len()
    }

    /// A region's name.
    pub fn name(&self, region: usize) -> &'static str {
        self.names[region]
    }

    /// There and back.
    pub fn round_trip_us(&self, a: usize, b: usize) -> u64 {
        self.round_trips_us[a][b]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_as_far_back() {
        for distance in [Distance::three(), Distance::five()] {
            for a in 0..distance.regions() {
                for b in 0..distance.regions() {
                    let there = distance.round_trip_us(a, b);
                    assert_eq!(there, distance.round_trip_us(b, a));
                    assert_eq!(there == 0, a == b);
                }
            }
        }
    }
}
