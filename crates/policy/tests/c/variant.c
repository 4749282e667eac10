// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The policy under names of its own, so that several variants of it fit into
 * one program. MW_VARIANT and MW_SOURCE come from build.rs.
 */
#define MW_PASTE_(a, b) a##_##b
#define MW_PASTE(a, b) MW_PASTE_(a, b)
#define MW_NAME(name) MW_PASTE(MW_VARIANT, name)

#define mw_policy_init MW_NAME(policy_init)
#define mw_core_init MW_NAME(core_init)
#define mw_set_budget MW_NAME(set_budget)
#define mw_set_best_effort MW_NAME(set_best_effort)
#define mw_set_reclaim MW_NAME(set_reclaim)
#define mw_set_qmin MW_NAME(set_qmin)
#define mw_set_rt MW_NAME(set_rt)
#define mw_core_online MW_NAME(core_online)
#define mw_core_offline MW_NAME(core_offline)
#define mw_core_active MW_NAME(core_active)
#define mw_core_away MW_NAME(core_away)
#define mw_core_rest MW_NAME(core_rest)
#define mw_period_begin MW_NAME(period_begin)
#define mw_period_join MW_NAME(period_join)
#define mw_period_open MW_NAME(period_open)
#define mw_overflow MW_NAME(overflow)
#define mw_release MW_NAME(release)
#define mw_expect_stop MW_NAME(expect_stop)
#define mw_owe MW_NAME(owe)
#define mw_settle_stop MW_NAME(settle_stop)
#define mw_until_overflow MW_NAME(until_overflow)
#define mw_census_read MW_NAME(census_read)
#define mw_pool_read MW_NAME(pool_read)

#include MW_SOURCE

/* Same order as struct Variant in tests/explore/engine.rs. */
const struct {
	void (*policy_init)(struct mw_policy *policy);
	void (*core_init)(struct mw_core *core);
	int (*set_budget)(struct mw_core *core, enum mw_resource resource,
			  u64 events);
	int (*set_best_effort)(struct mw_policy *policy, u64 mode);
	int (*set_reclaim)(struct mw_policy *policy, u64 on);
	void (*set_rt)(struct mw_core *core, bool rt);
	void (*core_online)(struct mw_policy *policy, struct mw_core *core);
	enum mw_action (*core_offline)(struct mw_policy *policy,
				       struct mw_core *core);
	void (*core_active)(struct mw_policy *policy, struct mw_core *core);
	enum mw_action (*core_away)(struct mw_policy *policy,
				    struct mw_core *core);
	void (*core_rest)(struct mw_policy *policy, struct mw_core *core);
	enum mw_action (*period_begin)(struct mw_policy *policy,
				       struct mw_core *core,
				       u64 number, bool idle,
				       const u64 used[MW_RESOURCES]);
	enum mw_action (*overflow)(struct mw_policy *policy,
				   struct mw_core *core,
				   enum mw_resource resource, u64 used);
	enum mw_action (*release)(struct mw_policy *policy,
				  struct mw_core *core);
	struct mw_census (*census_read)(const struct mw_policy *policy);
} MW_NAME(variant) = {
	mw_policy_init,	 mw_core_init,	 mw_set_budget,	  mw_set_best_effort,
	mw_set_reclaim,	 mw_set_rt,	 mw_core_online,  mw_core_offline,
	mw_core_active,	 mw_core_away,	 mw_core_rest,	  mw_period_begin,
	mw_overflow,	 mw_release,	 mw_census_read,
};
