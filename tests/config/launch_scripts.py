"""Launch scripts of slime's users, in the arrays that such scripts have, with variables written out."""

from __future__ import annotations

DENSE = """
  --swiglu --num-layers 36 --hidden-size 2560 --ffn-hidden-size 9728 --num-attention-heads 32 --group-query-attention
  --num-query-groups 8 --use-rotary-position-embeddings --disable-bias-linear --normalization RMSNorm
  --norm-epsilon 1e-6 --rotary-base 1000000 --vocab-size 151936 --kv-channels 128 --qk-layernorm
"""
MOE = """
  --disable-bias-linear --qk-layernorm --group-query-attention --num-attention-heads 32 --num-query-groups 4
  --kv-channels 128 --num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --normalization RMSNorm
  --position-embedding-type rope --norm-epsilon 1e-6 --rotary-percent 1.0 --swiglu
  --untie-embeddings-and-output-weights --vocab-size 151936 --rotary-base 1000000
  --moe-ffn-hidden-size 768 --moe-router-score-function softmax --moe-token-dispatcher-type alltoall
  --moe-router-topk 8 --moe-layer-freq [1]*48 --num-experts 128 --moe-grouped-gemm --moe-token-drop-policy probs
  --moe-router-dtype fp32 --moe-permute-fusion --moe-aux-loss-coeff 0
"""
LATENT = """
  --moe-layer-freq [0]*3+[1]*58 --num-experts 256 --moe-shared-expert-intermediate-size 2048 --moe-router-topk 8
  --moe-grouped-gemm --moe-permute-fusion --moe-ffn-hidden-size 2048 --moe-router-score-function sigmoid
  --moe-router-pre-softmax --moe-router-enable-expert-bias --moe-router-bias-update-rate 0
  --moe-router-load-balancing-type seq_aux_loss --moe-router-topk-scaling-factor 2.5 --moe-aux-loss-coeff 0
  --moe-router-dtype fp32 --moe-router-num-groups 8 --moe-router-group-topk 4 --moe-token-drop-policy probs
  --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --make-vocab-size-divisible-by 32
  --vocab-size 129280 --disable-bias-linear --normalization RMSNorm --norm-epsilon 1e-6 --swiglu
  --use-rotary-position-embeddings --no-position-embedding --untie-embeddings-and-output-weights
  --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --v-head-dim 128
  --qk-pos-emb-head-dim 64 --qk-layernorm --rotary-scaling-factor 40 --rotary-base 10000 --mscale 1.0
  --mscale-all-dim 1.0 --no-rope-fusion --attention-softmax-in-fp32
"""
CKPT = """
  --hf-checkpoint /root/model --ref-load /root/model_torch_dist --load /root/run/ --save /root/run/ --save-interval 20
"""
ROLLOUT = """
  --prompt-data /root/dapo-math-17k.jsonl --input-key prompt --label-key label --apply-chat-template --rollout-shuffle
  --rm-type deepscaler --num-rollout 3000 --rollout-batch-size 32 --n-samples-per-prompt 8
  --rollout-max-response-len 8192 --rollout-temperature 0.8 --global-batch-size 256 --balance-data
"""
EVAL = """
  --eval-interval 20 --eval-prompt-data aime /root/aime-2024.jsonl --n-samples-per-eval-prompt 16
  --eval-max-response-len 16384 --eval-top-p 0.7
"""
PERF = """
  --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 1 --context-parallel-size 1
  --expert-model-parallel-size 1 --expert-tensor-parallel-size 1 --recompute-granularity full
  --recompute-method uniform --recompute-num-layers 1 --use-dynamic-batch-size --max-tokens-per-gpu 9216
"""
GRPO = """
  --advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.00 --kl-loss-type low_var_kl --entropy-coef 0.00
  --eps-clip 0.2 --eps-clip-high 0.28
"""
OPTIMIZER = "--optimizer adam --lr 1e-6 --lr-decay-style constant --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.98"
OFFLOADED = "--optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d --use-precision-aware-optimizer"
WANDB = "--use-wandb --wandb-project slime-dev --wandb-group qwen3-4B-test --wandb-mode offline --use-tensorboard"
SGLANG = "--rollout-num-gpus-per-engine 2 --sglang-mem-fraction-static 0.7"
MISC = """
  --attention-dropout 0.0 --hidden-dropout 0.0 --accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32
  --attention-backend flash
"""
PLACE = "--actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate"
MOST = f"{PLACE} {CKPT} {OPTIMIZER} {PERF} {EVAL} {SGLANG} {MISC}"

STARTS: dict[str, str] = {
    "grpo, colocated": f"{DENSE} {MOST} {ROLLOUT} {GRPO} {WANDB}",
    "grpo, saved while it trains": f"""{DENSE} {MOST} {ROLLOUT} {GRPO} --async-save --no-offload-rollout
        --no-offload-train""",
    "grpo, beside": f"{DENSE} {MOST.replace('--colocate', '--rollout-num-gpus 8')} {ROLLOUT} {GRPO}",
    "dapo": f"""{DENSE} {MOST} {ROLLOUT} {GRPO} --rm-type dapo --reward-key score --over-sampling-batch-size 64
        --dynamic-sampling-filter-path slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std
        --partial-rollout --mask-offpolicy-in-partial-rollout --calculate-per-token-loss""",
    "gspo with a longer warm-up": f"""{DENSE} {MOST} {ROLLOUT} --advantage-estimator gspo --eps-clip 3e-4
        --eps-clip-high 4e-4 --lr-warmup-fraction 0.01 --min-lr 1e-7 --start-weight-decay 0.1 --end-weight-decay 0.1""",
    "reinforce++": f"""{DENSE} {MOST} {ROLLOUT} --advantage-estimator reinforce_plus_plus
        --normalize-advantages --kl-coef 0.01""",
    "supervised": f"""{DENSE} {PLACE} {CKPT} {OPTIMIZER} {PERF} {MISC}
        --rollout-function-path slime.rollout.sft_rollout.generate_rollout --prompt-data /root/openhermes.parquet
        --input-key messages --rollout-shuffle --num-epoch 3 --rollout-batch-size 128 --global-batch-size 128
        --loss-type sft_loss --loss-mask-type qwen3 --calculate-per-token-loss --debug-train-only
        --disable-compute-advantages-and-returns --lr-decay-style cosine --min-lr 1e-6 --lr-warmup-fraction 0.1""",
    "search, several turns": f"""{DENSE} {MOST.replace(EVAL, "")} {ROLLOUT} {GRPO} --reward-key score
        --custom-generate-function-path generate_with_search.generate --custom-rm-path generate_with_search.reward_func
        --use-tis --custom-config-path examples/train_infer_mismatch_helper/mis.yaml
        --custom-tis-function-path examples.train_infer_mismatch_helper.mis.compute_mis_weights_with_cp""",
    "tools, several turns": f"""{DENSE} {MOST} {ROLLOUT} {GRPO} --reward-key score --log-multi-turn
        --custom-generate-function-path generate_with_retool.generate --custom-rm-path generate_with_retool.reward_func
        --rollout-max-context-len 32768 --rollout-stop-token-ids 151645""",
    "a user's own prompts": f"""{DENSE} {MOST} {ROLLOUT.replace("--num-rollout 3000", "--num-rollout 10")} {GRPO}
        --disable-rollout-global-dataset --data-source-path mine.Source --custom-rm-path mine.reward""",
    "asynchronous": f"""{DENSE} {MOST.replace("--colocate", "--rollout-num-gpus 8")} {ROLLOUT} {GRPO}
        --update-weights-interval 2 --use-fault-tolerance --rollout-health-check-interval 10""",
    "reproducible": f"""{DENSE} {MOST} {ROLLOUT} {GRPO} --sglang-enable-deterministic-inference --deterministic-mode
        --sglang-attention-backend fa3
        --train-env-vars '{{"NCCL_ALGO": "Ring", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}}'""",
    "dumps for debugging": f"""{DENSE} {MOST} {ROLLOUT} {GRPO} --dump-details /tmp/dumps --debug-rollout-only
        --check-weight-update-equal""",
    "eight-bit engines": f"""{DENSE} {MOST.replace("/root/model ", "/root/model-FP8 ")} {ROLLOUT} {GRPO}
        --transformer-impl transformer_engine --bf16 --fp8-format e4m3 --fp8-recipe blockwise""",
    "mixture of experts": f"""{MOE} {MOST} {ROLLOUT} {GRPO} {OFFLOADED} --sglang-ep-size 8
        --sglang-cuda-graph-bs 1 2 4 8 16 24 32""",
    "mixture of experts, in stages": f"""{LATENT} {MOST} {ROLLOUT} {GRPO} {OFFLOADED}
        --decoder-last-pipeline-num-layers 13 --moe-enable-deepep --moe-token-dispatcher-type flex
        --sglang-enable-dp-attention --sglang-dp-size 8 --sglang-moe-dense-tp-size 1 --sglang-enable-dp-lm-head
        --sglang-disable-radix-cache --no-save-optim --no-load-optim --no-load-rng --finetune""",
}
"""What `train` takes. The machine, the files and the model are looked at afterwards."""

MAY_BE_REFUSED: dict[str, str] = {
    "ppo": f"""{DENSE} {MOST} {ROLLOUT} --advantage-estimator ppo --num-critic-only-steps 10 --critic-lr 1e-5
        --critic-load /root/critic --critic-save /root/critic --value-clip 0.2 --kl-coef 0.01 --gamma 1 --lambd 0.95
        --normalize-advantages""",
    "distillation from an engine": f"""{DENSE} {MOST.replace(EVAL, "")} {ROLLOUT} --advantage-estimator grpo --use-opd
        --opd-type sglang --opd-kl-coef 1.0 --custom-rm-path slime.rollout.on_policy_distillation.reward_func
        --custom-reward-post-process-path slime.rollout.on_policy_distillation.post_process_rewards
        --rm-url http://127.0.0.1:13141/generate""",
    "distillation from the trainer": f"""{DENSE} {MOST} {ROLLOUT} {GRPO} --use-opd --opd-type megatron
        --opd-teacher-load /root/teacher --opd-kl-coef 0.5""",
    "own specification of layers": f"{MOE} --spec slime_plugins.models.glm4 get_glm_spec {MOST} {ROLLOUT} {GRPO}",
    "experts of the engine": f"{MOE} {MOST} {ROLLOUT} {GRPO} --use-rollout-routing-replay --use-routing-replay",
    "deltas on disk": f"""{DENSE} {MOST.replace("--colocate", "--rollout-num-gpus 8")} {ROLLOUT} {GRPO}
        --update-weight-mode delta --update-weight-transport disk --update-weight-disk-dir /shared
        --update-weight-delta-encoding xor --update-weight-local-checkpoint-dir /local""",
    "fully asynchronous": f"""{DENSE} {MOST.replace("--colocate", "--rollout-num-gpus 8").replace(EVAL, "")} {ROLLOUT}
        {GRPO} --rollout-function-path slime.rollout.fully_async_rollout.generate_rollout_fully_async""",
    "prefill apart": f"{DENSE} {MOST} {ROLLOUT} {GRPO} --prefill-num-servers 1",
    "predicting more tokens": f"{DENSE} {MOST} {ROLLOUT} {GRPO} --mtp-num-layers 1 --enable-mtp-training",
    "checked by slime's own CI": f"{DENSE} {MOST} {ROLLOUT} {GRPO} --ci-test --ci-disable-kl-checker",
    "images": f'{DENSE} {MOST} {ROLLOUT} {GRPO} --multimodal-keys \'{{"image": "images"}}\'',
}
"""Scripts with something that may not be built yet: the reason is the one on the page of flags."""
