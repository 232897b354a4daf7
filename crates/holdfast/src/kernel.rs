//! `holdfast doctor --machine`: advice about the kernel's settings, for a machine that serves many
//! small requests. What is read from /proc and /sys goes into [`Facts`]; what follows from them is
//! decided by [`advise`], which reads nothing. Changes nothing.

use holdfast_base::Result;
use holdfast_command::output::Output;
use serde_json::json;
use std::path::Path;

/// Receive buffer for bursts of datagrams, as the cache asks for it.
const SOCKET_BYTES_WANTED: u64 = 4 << 20;
/// Connections that wait to be accepted: the cache's default `-b`.
const BACKLOG_WANTED: u64 = 1024;
/// Swapping out a cache is slower than a miss.
const SWAPPINESS_MAX: u64 = 10;
/// Descriptors: a server of a large site has hundreds of thousands of clients.
const DESCRIPTORS_WANTED: u64 = 65_536;
/// One core with more than this part of a device's interrupts has them all, about.
const INTERRUPTS_PART_MAX: f64 = 0.8;
/// Fewer interrupts say nothing yet.
const INTERRUPTS_MIN: u64 = 10_000;

/// What matters of a machine; nothing where the kernel does not say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Those that this process may use.
    pub cores: usize,
    /// Bytes of a socket's receive buffer at most.
    pub rmem_max: Option<u64>,
    /// Bytes of a socket's send buffer at most.
    pub wmem_max: Option<u64>,
    /// Connections that may wait to be accepted.
    pub somaxconn: Option<u64>,
    /// 0 to 200: the larger, the sooner memory goes to swap.
    pub swappiness: Option<u64>,
    /// Swap space in all; 0 for none.
    pub swap_kib: Option<u64>,
    /// The word in brackets of /sys/kernel/mm/transparent_hugepage/enabled.
    pub huge_pages: Option<String>,
    /// Microseconds that `poll` spins on a device before it sleeps.
    pub busy_poll: Option<u64>,
    /// The same for reads of a socket.
    pub busy_read: Option<u64>,
    /// Files and sockets that this process may have open at once.
    pub descriptors: Option<u64>,
    /// In the order of their names.
    pub devices: Vec<Device>,
}

/// A network device that is no loopback.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Device {
    /// As `ip link` calls it.
    pub name: String,
    /// Each has an interrupt of its own, as a rule.
    pub receive_queues: usize,
    /// Receive steering (RPS) is on for some queue.
    pub steers: bool,
    /// Its interrupts so far, by core.
    pub interrupts: Vec<u64>,
}

/// One sentence each: what is so, why it matters, what to type.
pub fn advise(facts: &Facts) -> Vec<String> {
    let mut advice = Vec::new();
    for (name, value) in [("rmem_max", facts.rmem_max), ("wmem_max", facts.wmem_max)] {
        if let Some(bytes) = value.filter(|bytes| *bytes < SOCKET_BYTES_WANTED) {
            advice.push(format!(
                "socket buffers end at {bytes} bytes (net.core.{name}): bursts of datagrams are lost: `sysctl -w net.core.{name}={SOCKET_BYTES_WANTED}`"
            ));
        }
    }
    if let Some(n) = facts.somaxconn.filter(|n| *n < BACKLOG_WANTED) {
        advice.push(format!(
            "{n} connections may wait to be accepted (net.core.somaxconn): clients that start together time out: `sysctl -w net.core.somaxconn=4096`"
        ));
    }
    let swaps = facts.swap_kib.is_some_and(|kib| kib > 0);
    if let Some(n) = facts.swappiness.filter(|n| swaps && *n > SWAPPINESS_MAX) {
        advice.push(format!(
            "there is swap, and vm.swappiness is {n}: a cache that is swapped out is slower than none: `swapoff -a`, or `sysctl -w vm.swappiness=1`"
        ));
    }
    if facts.huge_pages.as_deref() == Some("never") {
        advice.push(
            "huge pages are off: each look-up of the cache walks page tables, about 15% slower: `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`"
                .to_owned(),
        );
    }
    if let Some(n) = facts.descriptors.filter(|n| *n < DESCRIPTORS_WANTED) {
        advice.push(format!(
            "a process may have {n} descriptors: more clients than that wait: `ulimit -n 1048576`, or LimitNOFILE= of the service"
        ));
    }
    for device in &facts.devices {
        advise_device(facts, device, &mut advice);
    }
    advice
}

fn advise_device(facts: &Facts, device: &Device, advice: &mut Vec<String>) {
    let name = &device.name;
    let all: u64 = device.interrupts.iter().sum();
    let most = device.interrupts.iter().copied().max().unwrap_or(0);
    let one_core = all > INTERRUPTS_MIN && most as f64 > all as f64 * INTERRUPTS_PART_MAX;
    if facts.cores > 1 && device.receive_queues > 1 && one_core {
        let core = device.interrupts.iter().position(|n| *n == most).unwrap_or(0);
        advice.push(format!(
            "core {core} takes {:.0}% of the interrupts of `{name}`, which has {} receive queues: one core receives for all: start irqbalance, or write one core a queue to /proc/irq/N/smp_affinity_list",
            100.0 * most as f64 / all as f64,
            device.receive_queues
        ));
    }
    if facts.cores > 1 && device.receive_queues == 1 && !device.steers {
        let mask = if facts.cores >= 32 { u32::MAX } else { (1u32 << facts.cores) - 1 };
        advice.push(format!(
            "`{name}` has one receive queue and no receive steering: one core receives for all: `echo {mask:x} > /sys/class/net/{name}/queues/rx-0/rps_cpus`"
        ));
    }
    if facts.busy_poll == Some(0) && facts.busy_read == Some(0) {
        advice.push(format!(
            "sockets on `{name}` wait for interrupts: where latency counts more than a core, start the cache with `-o busy_poll=50` (SO_BUSY_POLL), or `sysctl -w net.core.busy_poll=50 net.core.busy_read=50`"
        ));
    }
}

/// Reads what the kernel says below `root` (`/` but in tests).
pub fn read(root: &Path) -> Facts {
    let text = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let number = |path: &str| text(path)?.trim().parse::<u64>().ok();
    let bracketed = |text: String| {
        let (_, rest) = text.split_once('[')?;
        rest.split_once(']').map(|(word, _)| word.to_owned())
    };
    let swap = || {
        let info = text("proc/meminfo")?;
        let line = info.lines().find_map(|line| line.strip_prefix("SwapTotal:"))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let descriptors = || {
        let limits = text("proc/self/limits")?;
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    Facts {
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        rmem_max: number("proc/sys/net/core/rmem_max"),
        wmem_max: number("proc/sys/net/core/wmem_max"),
        somaxconn: number("proc/sys/net/core/somaxconn"),
        swappiness: number("proc/sys/vm/swappiness"),
        swap_kib: swap(),
        huge_pages: text("sys/kernel/mm/transparent_hugepage/enabled").and_then(bracketed),
        busy_poll: number("proc/sys/net/core/busy_poll"),
        busy_read: number("proc/sys/net/core/busy_read"),
        descriptors: descriptors(),
        devices: devices(root),
    }
}

#[expect(clippy::disallowed_methods, reason = "the kernel's own files; nothing is kept in them")]
fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn devices(root: &Path) -> Vec<Device> {
    let interrupts = std::fs::read_to_string(root.join("proc/interrupts")).unwrap_or_default();
    let net = root.join("sys/class/net");
    let physical = |name: &String| net.join(name).join("device").exists();
    let device = |name: String| {
        let queues = net.join(&name).join("queues");
        let receive: Vec<String> =
            names(&queues).into_iter().filter(|queue| queue.starts_with("rx-")).collect();
        let steers = receive.iter().any(|queue| {
            let mask = std::fs::read_to_string(queues.join(queue).join("rps_cpus"));
            mask.is_ok_and(|mask| mask.chars().any(|c| c.is_ascii_hexdigit() && c != '0'))
        });
        // virtio devices name their interrupts after themselves, not after the network device.
        let bus = std::fs::read_link(net.join(&name).join("device")).ok();
        let bus = bus.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        let mine = |line: &str| {
            line.split_whitespace().any(|word| {
                let is = |device: &str| {
                    word.strip_prefix(device).is_some_and(|r| r.is_empty() || r.starts_with('-'))
                };
                is(&name) || bus.as_deref().is_some_and(is)
            })
        };
        let interrupts = by_core(interrupts.lines().filter(|line| mine(line)));
        Device { receive_queues: receive.len(), name, steers, interrupts }
    };
    names(&net).into_iter().filter(physical).map(device).collect()
}

/// Sums of the columns between the number and the name.
fn by_core<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<u64> {
    let mut sums: Vec<u64> = Vec::new();
    for line in lines {
        let counts = line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok());
        for (core, count) in counts.enumerate() {
            sums.resize(sums.len().max(core + 1), 0);
            sums[core] += count;
        }
    }
    sums
}

/// Prints the advice. There is always some machine that does well without it: this never fails.
pub fn run(out: &mut Output) -> Result<()> {
    let advice = advise(&read(Path::new("/")));
    if advice.is_empty() {
        return out.line(
            || "the machine's settings are as a busy server wants them".to_owned(),
            || json!({"advice": []}),
        );
    }
    for line in &advice {
        out.line(|| format!("- {line}"), || json!({"advice": line}))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn well() -> Facts {
        Facts {
            cores: 8,
            rmem_max: Some(64 << 20),
            wmem_max: Some(64 << 20),
            somaxconn: Some(4096),
            swappiness: Some(60),
            swap_kib: Some(0),
            huge_pages: Some("madvise".to_owned()),
            busy_poll: Some(50),
            busy_read: Some(50),
            descriptors: Some(1 << 20),
            devices: vec![Device {
                name: "eth0".to_owned(),
                receive_queues: 8,
                steers: false,
                interrupts: vec![20_000; 8],
            }],
        }
    }

    #[test]
    fn a_machine_that_is_set_up_gets_no_advice_and_an_unknown_one_none_either() {
        assert_eq!(advise(&well()), Vec::<String>::new());
        assert_eq!(advise(&Facts::default()), Vec::<String>::new());
    }

    #[test]
    fn each_setting_that_costs_is_named_with_what_to_type() {
        let device = |change: fn(&mut Device)| {
            let mut facts = well();
            change(&mut facts.devices[0]);
            facts
        };
        for (facts, words) in [
            (Facts { rmem_max: Some(212_992), ..well() }, "net.core.rmem_max=4194304"),
            (Facts { wmem_max: Some(212_992), ..well() }, "net.core.wmem_max=4194304"),
            (Facts { somaxconn: Some(128), ..well() }, "net.core.somaxconn=4096"),
            (Facts { swap_kib: Some(1 << 20), ..well() }, "swapoff -a"),
            (Facts { huge_pages: Some("never".to_owned()), ..well() }, "transparent_hugepage"),
            (Facts { descriptors: Some(1024), ..well() }, "LimitNOFILE"),
            (Facts { busy_poll: Some(0), busy_read: Some(0), ..well() }, "busy_poll=50"),
            (device(|d| d.interrupts = vec![99_000, 10, 10]), "core 0 takes 100%"),
            (device(|d| d.receive_queues = 1), "echo ff > /sys/class/net/eth0"),
        ] {
            let advice = advise(&facts);
            assert!(advice.len() == 1 && advice[0].contains(words), "{words}: {advice:?}");
        }
    }

    #[test]
    fn columns_of_interrupts_are_added_up() {
        let lines =
            [" 24:  10  20  PCI-MSI 1-edge virtio0-input.0", " 25:  1  2  PCI-MSI 2-edge x"];
        assert_eq!(by_core(lines.into_iter()), [11, 22]);
        // Whatever this machine is, reading it does not fail.
        assert!(read(Path::new("/")).cores > 0);
        assert_eq!(read(Path::new("/nonexistent")).rmem_max, None);
    }
}
