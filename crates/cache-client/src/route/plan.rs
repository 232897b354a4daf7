//! Which pools there are, and which keys go where. Servers of all pools are numbered through.

use crate::batch;
use crate::fleet::Transport;
use crate::lookaside::standing::lease_key;
use crate::ring::{Hashing, Member, Ring};
use holdfast_base::{Error, Result};
use holdfast_env::tls::{TlsTarget, TlsTrust};

/// One pool as it is configured.
#[derive(Clone, Debug, Default)]
pub struct PoolPlan {
    pub name: String,
    pub servers: Vec<Member>,
    pub hashing: Hashing,
    /// How gets travel.
    pub gets: Transport,
    /// The pool that has the keys of dead servers meanwhile.
    pub gutter: Option<String>,
    /// The pool that knows what this one still misses.
    pub warm_from: Option<String>,
    /// The pool of `holdfast invalidate run --to` by whose leases its servers count, and those of its gutter and of
    /// its warm pool. Nothing has all count.
    pub server_lease: Option<String>,
    /// Where its servers speak TLS: what they are believed for.
    pub tls: Option<TlsTrust>,
}

impl PoolPlan {
    fn lease_key(&self) -> Result<Option<Vec<u8>>> {
        let Some(pool) = &self.server_lease else { return Ok(None) };
        let key = lease_key(pool);
        if pool.is_empty() || batch::check(&key).is_err() {
            return Err(Error::invalid(format!(
                "plan routes: `server_lease` of pool `{}` is `{pool}`, which no pool is called: give the name \
                 behind `--to` of `holdfast invalidate run`",
                self.name
            )));
        }
        Ok(Some(key))
    }

    /// Of each server, in their order.
    fn targets(&self) -> Result<Vec<Option<TlsTarget>>> {
        let doing = |e: Error| e.context(format_args!("plan routes: pool `{}`", self.name));
        match &self.tls {
            None => Ok(vec![None; self.servers.len()]),
            Some(_) if self.gets == Transport::Udp => {
                Err(doing(Error::invalid("UDP has no TLS: send its gets over TCP")))
            }
            Some(trust) => {
                let hosts = self.servers.iter().map(|server| server.host.as_str());
                Ok(trust.targets(hosts).map_err(doing)?.into_iter().map(Some).collect())
            }
        }
    }
}

/// A pool in a checked plan; others by their numbers.
pub struct Pool {
    pub name: String,
    pub gets: Transport,
    pub gutter: Option<usize>,
    pub warm: Option<usize>,
    /// Of [`RoutePlan::leases`].
    pub lease: Option<usize>,
    ring: Ring,
    first: u32,
    servers: u32,
}

impl Pool {
    pub fn server(&self, key: &[u8]) -> Option<u32> {
        self.ring.find(key).map(|server| self.first + server)
    }

    pub fn hashing(&self) -> Hashing {
        self.ring.hashing()
    }

    pub fn servers(&self) -> std::ops::Range<u32> {
        self.first..self.first + self.servers
    }
}

pub struct RoutePlan {
    pub pools: Vec<Pool>,
    pub members: Vec<Member>,
    /// Of each member that speaks TLS.
    pub targets: Vec<Option<TlsTarget>>,
    /// Keys of the leases that servers count by.
    pub leases: Vec<Vec<u8>>,
    /// Prefix and pool, the longest first.
    prefixes: Vec<(Vec<u8>, usize)>,
    default: usize,
    /// What is stored in a gutter pool expires after so many seconds: it may be old by then.
    pub gutter_expiry_s: u32,
}

impl RoutePlan {
    /// Checks names and makes the rings. `prefixes` are (prefix, pool).
    pub fn new(
        pools: Vec<PoolPlan>,
        prefixes: Vec<(String, String)>,
        default: &str,
        gutter_expiry_s: u32,
    ) -> Result<RoutePlan> {
        let find = |name: &str, whose: &str| {
            pools.iter().position(|pool| pool.name == name).ok_or_else(|| {
                let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
                Error::invalid(format!(
                    "plan routes: {whose} names pool `{name}`, which there is not: use one of `{}`",
                    names.join("`, `")
                ))
            })
        };
        let (mut made, mut members, mut targets) = (Vec::new(), Vec::new(), Vec::new());
        let mut leases: Vec<Vec<u8>> = Vec::new();
        for (number, pool) in pools.iter().enumerate() {
            let whose = |what: &str| format!("`{what}` of pool `{}`", pool.name);
            let other = |name: &Option<String>, what: &str| {
                let found = name.as_ref().map(|name| find(name, &whose(what))).transpose()?;
                if found == Some(number) {
                    let whose = whose(what);
                    return Err(Error::invalid(format!(
                        "plan routes: {whose} names the pool itself: name another"
                    )));
                }
                Ok(found)
            };
            if pool.servers.is_empty() {
                let name = &pool.name;
                return Err(Error::invalid(format!(
                    "plan routes: pool `{name}` has no servers: list some"
                )));
            }
            for (i, server) in pool.servers.iter().enumerate() {
                if pool.servers[..i].iter().any(|s| s.host == server.host && s.port == server.port)
                {
                    let name = &pool.name;
                    return Err(Error::invalid(format!(
                        "plan routes: pool `{name}` lists server `{server}` twice: give it a weight instead"
                    )));
                }
            }
            let lease = pool.lease_key()?.map(|key| {
                leases.iter().position(|lease| *lease == key).unwrap_or_else(|| {
                    leases.push(key);
                    leases.len() - 1
                })
            });
            made.push(Pool {
                lease,
                name: pool.name.clone(),
                gets: pool.gets,
                gutter: other(&pool.gutter, "gutter")?,
                warm: other(&pool.warm_from, "warm_from")?,
                ring: Ring::new(&pool.servers, pool.hashing),
                first: members.len() as u32,
                servers: pool.servers.len() as u32,
            });
            members.extend(pool.servers.iter().cloned());
            targets.extend(pool.targets()?);
        }
        let mut routes = Vec::new();
        for (prefix, pool) in prefixes {
            let number = find(&pool, &format!("prefix `{prefix}`"))?;
            routes.push((prefix.into_bytes(), number));
        }
        routes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        let default = find(default, "`default`")?;
        let prefixes = routes;
        Ok(RoutePlan { pools: made, members, targets, leases, prefixes, default, gutter_expiry_s })
    }

    /// Servers that count by a lease: of its pools, and of their gutters and warm pools.
    pub fn leased(&self, lease: usize) -> Vec<u32> {
        let of = |pool: usize| self.pools[pool].servers();
        let whole = |number: usize| {
            let pool = &self.pools[number];
            [Some(number), pool.gutter, pool.warm].into_iter().flatten().flat_map(of)
        };
        let ours = (0..self.pools.len()).filter(|pool| self.pools[*pool].lease == Some(lease));
        let mut servers: Vec<u32> = ours.flat_map(whole).collect();
        servers.sort_unstable();
        servers.dedup();
        servers
    }

    /// The pool of a key.
    pub fn pool(&self, key: &[u8]) -> usize {
        let route = self.prefixes.iter().find(|(prefix, _)| key.starts_with(prefix));
        route.map_or(self.default, |(_, pool)| *pool)
    }

    /// Every server that belongs to more than somebody else's warm pool: what a flush is for.
    pub fn flushed(&self) -> Vec<u32> {
        let is_ours = |number: usize| {
            self.default == number
                || self.prefixes.iter().any(|(_, pool)| *pool == number)
                || self.pools.iter().any(|pool| pool.gutter == Some(number))
        };
        let ours = self.pools.iter().enumerate().filter(|(number, _)| is_ours(*number));
        ours.flat_map(|(_, pool)| pool.servers()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str, servers: &[&str]) -> PoolPlan {
        let servers = servers.iter().map(|s| Member::parse(s).unwrap()).collect();
        PoolPlan { name: name.into(), servers, ..PoolPlan::default() }
    }

    fn wrong(pools: Vec<PoolPlan>, prefix: &str, default: &str) -> String {
        let prefixes = vec![("x:".to_owned(), prefix.to_owned())];
        RoutePlan::new(pools, prefixes, default, 10).err().unwrap().message
    }

    #[test]
    fn the_longest_prefix_decides() {
        let pools = vec![pool("a", &["s1", "s2"]), pool("b", &["s3"]), pool("c", &["s4"])];
        let prefix = |p: &str, pool: &str| (p.to_owned(), pool.to_owned());
        let prefixes = vec![prefix("user:", "b"), prefix("user:1:", "c")];
        let plan = RoutePlan::new(pools, prefixes, "a", 10).unwrap();
        assert_eq!((plan.pool(b"x"), plan.pool(b"user:2"), plan.pool(b"user:1:")), (0, 1, 2));
        assert_eq!((plan.pools[2].server(b"k"), plan.pools[0].servers()), (Some(3), 0..2));
        assert_eq!(plan.flushed(), [0, 1, 2, 3]);
    }

    #[test]
    fn what_a_plan_lacks_is_said() {
        let all = || vec![pool("a", &["s1"]), pool("b", &["s2"])];
        assert!(wrong(all(), "z", "a").contains("prefix `x:` names pool `z`"));
        assert!(wrong(all(), "a", "z").contains("one of `a`, `b`"));
        assert!(wrong(vec![pool("a", &[])], "a", "a").contains("no servers"));
        assert!(wrong(vec![pool("a", &["s", "s:11211"])], "a", "a").contains("twice"));
        let mut itself = all();
        itself[0].gutter = Some("a".into());
        assert!(wrong(itself, "a", "a").contains("`gutter` of pool `a` names the pool itself"));
    }

    /// A gutter of two pools has a lease of each.
    #[test]
    fn servers_count_by_the_leases_of_the_pools_that_use_them() {
        let mut pools = vec![pool("a", &["s1", "s2"]), pool("b", &["s3"]), pool("c", &["s4"])];
        pools.push(pool("spare", &["s5"]));
        for (number, lease) in [(0, "x"), (1, "y")] {
            pools[number].gutter = Some("spare".into());
            pools[number].server_lease = Some(lease.into());
        }
        pools[1].warm_from = Some("c".into());
        let plan = RoutePlan::new(pools, Vec::new(), "a", 10).unwrap();
        assert_eq!((plan.leased(0), plan.leased(1)), (vec![0, 1, 4], vec![2, 3, 4]));
        assert_eq!((plan.pools[2].lease, plan.leases.len()), (None, 2));
    }

    #[test]
    fn a_flush_spares_a_pool_that_is_only_read_from() {
        let mut pools = vec![pool("cold", &["s1"]), pool("warm", &["s2"])];
        pools[0].warm_from = Some("warm".into());
        assert_eq!(RoutePlan::new(pools, Vec::new(), "cold", 10).unwrap().flushed(), [0]);
    }
}
