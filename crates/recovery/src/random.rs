//! Random numbers for plans and traces: the same seed gives the same numbers on every machine.
//! Uses integer arithmetic and basic floating point only, never the machine's libm.

use holdfast_base::random;

/// The house's generator, with the distributions that plans and traces draw from.
#[derive(Clone, Debug)]
pub struct Random(random::Random);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(random::Random::new(seed))
    }

    /// A generator for one part of the work, independent of the order in which parts are done.
    pub fn of(seed: u64, part: u64) -> Random {
        let mut random = Random::new(seed ^ part.wrapping_mul(0xd134_2543_de82_ef95));
        random.next();
        random
    }

    #[expect(clippy::should_implement_trait, reason = "an endless sequence is not an iterator")]
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// In [0, 1), 24 bits.
    #[inline]
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u32 << 24) as f32
    }

    /// In [0, n).
    #[inline]
    pub fn below(&mut self, n: usize) -> usize {
        self.0.below(n as u64) as usize
    }

    /// Mean 0, variance 1, and close to normal: the sum of eight 16-bit uniforms. Its tails end at
    /// 4.9; the filters that it drives smooth what is left of the difference.
    #[inline]
    pub fn normal(&mut self) -> f32 {
        let (a, b) = (self.next(), self.next());
        let sum = |z: u64| (z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48);
        // Eight uniforms on 0..65536 have mean 8 * 32767.5 and variance 8 * 65536^2 / 12.
        (sum(a) + sum(b)) as f32 * (1.0 / 53_510.0) - 262_140.0 / 53_510.0
    }
}

/// e^x to six digits, from exact operations only.
pub fn exp(x: f32) -> f32 {
    let x = f64::from(x).clamp(-80.0, 80.0);
    let k = (x * std::f64::consts::LOG2_E).round();
    let r = x - k * std::f64::consts::LN_2;
    let p = 1.0 + r * (1.0 + r * (1.0 / 2.0 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r / 120.0))));
    (p * f64::from_bits(((1023 + k as i64) as u64) << 52)) as f32
}

/// Draws indices with given weights in constant time (Walker's alias method, Vose 1991).
#[derive(Clone, Debug)]
pub struct Weighted {
    keep: Vec<f32>,
    other: Vec<u32>,
}

impl Weighted {
    /// Weights must not be negative, and not all 0.
    pub fn new(weights: &[f32]) -> Weighted {
        let n = weights.len();
        let total: f64 = weights.iter().map(|w| f64::from(*w)).sum();
        assert!(total > 0.0, "no weight is positive");
        let mut scaled: Vec<f64> =
            weights.iter().map(|w| f64::from(*w) * n as f64 / total).collect();
        let (mut small, mut large): (Vec<u32>, Vec<u32>) =
            (0..n as u32).partition(|i| scaled[*i as usize] < 1.0);
        let mut table = Weighted { keep: vec![1.0; n], other: (0..n as u32).collect() };
        while let (Some(s), Some(l)) = (small.pop(), large.pop()) {
            table.keep[s as usize] = scaled[s as usize] as f32;
            table.other[s as usize] = l;
            scaled[l as usize] -= 1.0 - scaled[s as usize];
            if scaled[l as usize] < 1.0 { small.push(l) } else { large.push(l) }
        }
        table
    }

    #[inline]
    pub fn draw(&self, random: &mut Random) -> u32 {
        let i = random.below(self.keep.len());
        if random.unit() < self.keep[i] { i as u32 } else { self.other[i] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_repeat_and_normals_are_normal_enough() {
        assert_eq!(Random::new(1234567).next(), 6457827717110365317);
        let mut random = Random::new(7);
        let n = 200_000;
        let (mut sum, mut squares, mut beyond) = (0.0f64, 0.0f64, 0);
        for _ in 0..n {
            let x = f64::from(random.normal());
            sum += x;
            squares += x * x;
            beyond += usize::from(x.abs() > 1.96);
        }
        let (mean, variance) = (sum / n as f64, squares / n as f64);
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.01, "{mean} {variance}");
        let share = beyond as f64 / n as f64;
        assert!((share - 0.05).abs() < 0.004, "{share}");
    }

    #[test]
    fn exp_agrees_with_the_machines() {
        for i in -400..400 {
            let x = i as f32 / 40.0;
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-5, "{x}");
        }
    }

    #[test]
    fn weights_decide_how_often() {
        let table = Weighted::new(&[1.0, 0.0, 3.0, 4.0]);
        let mut random = Random::new(1);
        let mut counts = [0; 4];
        for _ in 0..80_000 {
            counts[table.draw(&mut random) as usize] += 1;
        }
        assert_eq!(counts[1], 0);
        for (i, expected) in [(0, 10_000.0), (2, 30_000.0), (3, 40_000.0)] {
            assert!((counts[i] as f64 / expected - 1.0).abs() < 0.05, "{counts:?}");
        }
    }
}
