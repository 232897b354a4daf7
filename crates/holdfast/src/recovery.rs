//! `recovery`: how lost copies are made again, in words and as JSON, and the one knob that a person
//! turns. Asks the leader, who alone knows what it plans.

use crate::cli::{Recovery as Command, RecoverySet};
use holdfast_base::units::{format_bytes, parse_bytes};
use holdfast_base::{Error, Result};
use holdfast_client::Client;
use holdfast_command::output::Output;
use holdfast_command::secrets;
use holdfast_wire::admin::{Cluster, Order, Recovery, RecoverySettings};
use serde_json::{Value, json};

/// Prints how the repair is doing, or changes its settings on all nodes at once.
pub fn run(client: &mut Client, command: &Command, out: &mut Output) -> Result<()> {
    match command {
        Command::Status => {
            let recovery = leader(client)?.recovery;
            out.line(|| text(&recovery), || object(&recovery))
        }
        Command::Set(set) => {
            let settings = change(client.cluster()?.recovery.settings, set)?;
            client.order(&Order::Recovery { settings })?;
            out.line(|| said(&settings), || settings_object(&settings))
        }
    }
}

/// What was set, with what is set anew.
fn change(old: RecoverySettings, set: &RecoverySet) -> Result<RecoverySettings> {
    let mut settings = old;
    if let Some(percent) = set.p90_budget {
        settings.p90_budget_percent = percent;
    }
    if let Some(alpha) = set.alpha {
        if !(0.0..=1.0).contains(&alpha) {
            return Err(Error::invalid(format!(
                "set recovery's alpha to `{alpha}`: it is a share of a link: above 0 and up to 1"
            )));
        }
        settings.alpha_per_mille = (alpha * 1000.0).round() as u32;
    }
    let bytes = |what: &str, text: &str| {
        parse_bytes(text).map_err(|e| Error::invalid(format!("set {what} to `{text}`: {e}")))
    };
    if let Some(floor) = &set.b_min {
        settings.floor_bytes_per_second = bytes("the least that recovery may take", floor)?;
    }
    if let Some(rate) = &set.rate {
        settings.rate_max = bytes("the rate of recovery", rate)?;
    }
    Ok(settings)
}

fn said(settings: &RecoverySettings) -> String {
    let mut text = match (settings.p90_budget_percent, settings.alpha_per_mille) {
        (0, 0) => "recovery and foreground together may take 75% of a link".to_owned(),
        (0, alpha) => format!(
            "recovery and foreground together may take {}% of a link",
            f64::from(alpha) / 10.0
        ),
        (percent, _) => {
            format!("recovery may raise the 90th percentile of answers by {percent}%")
        }
    };
    if settings.floor_bytes_per_second > 0 {
        let floor = format_bytes(settings.floor_bytes_per_second);
        text.push_str(&format!("; {floor}/s of each node in any case"));
    }
    if settings.rate_max > 0 {
        let most = format_bytes(settings.rate_max);
        text.push_str(&format!("; {most}/s of each node at most"));
    }
    text
}

fn settings_object(settings: &RecoverySettings) -> Value {
    json!({
        "p90_budget_percent": settings.p90_budget_percent,
        "alpha": f64::from(settings.alpha_per_mille) / 1000.0,
        "b_min": settings.floor_bytes_per_second,
        "rate": settings.rate_max,
    })
}

fn text(r: &Recovery) -> String {
    let mut text = match r.short {
        0 if r.away.copies > 0 => "no copy is to be made anew yet".to_owned(),
        0 => "every chunk has its copies".to_owned(),
        n => format!("{n} chunks are short of copies, {} of them have one left", r.short_of_one),
    };
    if let Some(at_risk) = at_risk(r) {
        text.push_str(&format!("\n{at_risk}"));
    }
    if r.lost > 0 {
        text.push_str(&format!("\n{} chunks have no readable copy", r.lost));
    }
    if r.short > 0 || r.copies > 0 {
        let rate = |bytes: u64| format!("{}/s", format_bytes(bytes));
        let left = match r.seconds_left {
            Some(seconds) => format!("about {seconds} s"),
            None if r.bytes_left == 0 => "what is to be copied is being found out".to_owned(),
            None => "for ever as things are".to_owned(),
        };
        text.push_str(&format!(
            "\n{} left to copy: {left}; ideal {}, planned {}, actual {}",
            format_bytes(r.bytes_left),
            rate(r.ideal),
            rate(r.planned),
            rate(r.actual)
        ));
    }
    text.push_str(&format!(
        "\n{} copies under way, {} of {}; {} made ({}), {} failed and tried again, {} sent twice",
        r.copies,
        format_bytes(r.bytes_done),
        format_bytes(r.bytes_total),
        r.copies_made,
        format_bytes(r.bytes_made),
        r.copies_failed,
        format_bytes(r.bytes_resent)
    ));
    text.push_str(&format!("\n{}", said(&r.settings)));
    if r.settings.p90_budget_percent > 0 {
        text.push_str(&format!(
            ": alpha is {}% now, answers take {} us (usually {} us)",
            f64::from(r.alpha_per_mille) / 10.0,
            r.answer_us_p90,
            r.answer_us_p90_quiet
        ));
    }
    for slow in &r.slow {
        let others = match slow.count {
            1 => String::new(),
            n => format!(" and {} others", n - 1),
        };
        text.push_str(&format!("\n  chunk {}{others}: {}", slow.chunk, slow.reason));
    }
    if !r.confirm_lost.is_empty() {
        let nodes: Vec<_> = r.confirm_lost.iter().map(|n| n.0.to_string()).collect();
        text.push_str(&format!(
            "\nmany nodes are silent at once: if they are gone for good, say `holdfast node confirm-lost {}`",
            nodes.join(" ")
        ));
    }
    text
}

/// Copies that cannot be reached now, for a person.
pub fn at_risk(r: &Recovery) -> Option<String> {
    let away = r.away;
    if away.copies == 0 {
        return None;
    }
    let mut text = format!(
        "{} copies ({}) of {} chunks are at risk: their nodes do not answer",
        away.copies,
        format_bytes(away.bytes),
        away.chunks
    );
    if away.chunks_of_one > 0 {
        text.push_str(&format!("; {} chunks have one copy within reach", away.chunks_of_one));
    }
    if away.chunks_of_none > 0 {
        text.push_str(&format!("; {} chunks cannot be read now", away.chunks_of_none));
    }
    Some(text)
}

/// What of a cluster's chunks is worth a person's look now, one sentence each.
pub fn findings(r: &Recovery) -> Vec<String> {
    let mut findings: Vec<String> = at_risk(r).into_iter().collect();
    if r.lost > 0 {
        findings.push(format!(
            "{} chunks have no copy on any node that is not lost: `holdfast recovery status`",
            r.lost
        ));
    }
    if r.short > 0 {
        findings.push(format!(
            "{} chunks are short of copies, {} of them have one left: `holdfast recovery status` \
             says how it goes on",
            r.short, r.short_of_one
        ));
    }
    findings
}

fn object(r: &Recovery) -> Value {
    let slow = r.slow.iter().map(
        |slow| json!({"chunk": slow.chunk.to_string(), "count": slow.count, "reason": slow.reason}),
    );
    json!({
        "at_risk": {
            "copies": r.away.copies, "bytes": r.away.bytes, "chunks": r.away.chunks,
            "chunks_of_one": r.away.chunks_of_one, "chunks_of_none": r.away.chunks_of_none,
        },
        "short": r.short, "short_of_one": r.short_of_one, "lost": r.lost,
        "copies": r.copies, "bytes_total": r.bytes_total, "bytes_done": r.bytes_done,
        "copies_made": r.copies_made, "bytes_made": r.bytes_made,
        "copies_failed": r.copies_failed, "bytes_resent": r.bytes_resent,
        "bytes_per_second": r.bytes_per_second, "bytes_left": r.bytes_left,
        "ideal": r.ideal, "planned": r.planned, "actual": r.actual,
        "seconds_left": r.seconds_left, "alpha": f64::from(r.alpha_per_mille) / 1000.0,
        "answer_us_p90": r.answer_us_p90, "answer_us_p90_quiet": r.answer_us_p90_quiet,
        "settings": settings_object(&r.settings),
        "slow": slow.collect::<Vec<_>>(),
        "confirm_lost": r.confirm_lost.iter().map(|n| n.0).collect::<Vec<_>>(),
    })
}

/// The leader's own picture: others do not know what it plans.
pub fn leader(client: &mut Client) -> Result<Cluster> {
    let seen = client.cluster()?;
    let Some(leader) = seen.leader.filter(|leader| *leader != seen.node) else { return Ok(seen) };
    let address = seen.nodes.iter().find(|node| node.node == leader).map(|node| &node.address);
    let Some(address) = address else { return Ok(seen) };
    let endpoint = holdfast_client::Endpoint::parse(address)?;
    Client::connect(&endpoint, &secrets::options())?.cluster()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set() -> RecoverySet {
        RecoverySet { p90_budget: None, alpha: None, b_min: None, rate: None }
    }

    #[test]
    fn what_is_set_anew_leaves_the_rest_and_impossible_shares_are_refused() {
        let old = RecoverySettings { rate_max: 7, ..Default::default() };
        let new = change(old, &RecoverySet { alpha: Some(0.8), p90_budget: Some(5), ..set() });
        let wanted = RecoverySettings { alpha_per_mille: 800, p90_budget_percent: 5, ..old };
        assert_eq!(new, Ok(wanted));
        let new = change(wanted, &RecoverySet { b_min: Some("3M".to_owned()), ..set() }).unwrap();
        assert_eq!(new.floor_bytes_per_second, 3 << 20);
        for alpha in [-0.1, 1.01, f64::NAN] {
            let e = change(old, &RecoverySet { alpha: Some(alpha), ..set() }).unwrap_err();
            assert!(e.message.contains("alpha"), "{e}");
        }
        let wrong = RecoverySet { rate: Some("fast".to_owned()), ..set() };
        assert!(change(old, &wrong).unwrap_err().message.contains("`fast`"));
    }

    /// Until a dead node counted as lost, all copies were said to be there.
    #[test]
    fn copies_on_silent_nodes_are_at_risk_and_nothing_is_said_to_be_well() {
        use holdfast_wire::admin::Away;
        let away =
            Away { copies: 7, bytes: 5 << 20, chunks: 6, chunks_of_one: 2, chunks_of_none: 1 };
        let recovery = Recovery { away, ..Recovery::default() };
        let said = text(&recovery);
        assert!(!said.contains("every chunk has its copies"), "{said}");
        for part in ["7 copies (5.00 MiB) of 6 chunks", "2 chunks have one copy", "1 chunks cannot"]
        {
            assert!(said.contains(part), "{said}");
        }
        assert_eq!(findings(&recovery).len(), 1);
        assert_eq!(findings(&Recovery { lost: 80, short: 80, ..Recovery::default() }).len(), 2);
        assert!(findings(&Recovery::default()).is_empty());
        assert_eq!(object(&recovery)["at_risk"]["copies"], 7);
    }

    #[test]
    fn a_person_hears_how_long_it_takes_and_why() {
        let slow = holdfast_wire::admin::SlowTask {
            chunk: holdfast_base::ids::ChunkId(7),
            count: 3,
            reason: "node n3 is slow".to_owned(),
        };
        let recovery = Recovery {
            short: 3,
            copies: 1,
            bytes_left: 5 << 20,
            seconds_left: Some(4),
            slow: vec![slow],
            ..Recovery::default()
        };
        let text = text(&recovery);
        for part in ["3 chunks are short", "about 4 s", "and 2 others: node n3 is slow"] {
            assert!(text.contains(part), "{text}");
        }
        // A node was lost a moment ago, and nothing was planned yet.
        let text = super::text(&Recovery { short: 3, ..Recovery::default() });
        assert!(text.contains("is being found out") && !text.contains("for ever"), "{text}");
        let text = super::text(&Recovery { short: 3, bytes_left: 9, ..Recovery::default() });
        assert!(text.contains("for ever as things are"), "{text}");
    }
}
