"""The names of the files in a checkpoint and in a run's folder that several modules look for."""

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"  # instead of WEIGHTS in the folder of an adapter
GENERATION_CONFIG = "generation_config.json"
TRAINING = "training.json"
LAST = "last"  # the folder of the states that a run resumes from
TEACHER = "teacher"  # the folder of the run of the teacher that a distilled run learns from
