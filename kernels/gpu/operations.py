"""Every operation of the GPU beside weight-only products (`products.weight_only`): torch tensors in and out.

Only imported where `kernels.gpu.state` is ready, or under Triton's interpreter (TRITON_INTERPRET=1) on CPU tensors.
A launcher raises ValueError with the reason for shapes and types that no kernel takes. Nothing waits for the device.
"""

from kernels.gpu.attention.attend import Turning as Turning
from kernels.gpu.attention.attend import attend_prompt as attend_prompt
from kernels.gpu.attention.attend import attend_tokens as attend_tokens
from kernels.gpu.attention.grow import Waiting as Waiting
from kernels.gpu.attention.grow import close_tokens as close_tokens
from kernels.gpu.attention.grow import keep_tokens as keep_tokens
from kernels.gpu.attention.grow import reopen_tokens as reopen_tokens
from kernels.gpu.attention.grow import store_cache as store_cache
from kernels.gpu.attention.grow import turn as turn
from kernels.gpu.attention.grow import waiting_rows as waiting_rows
from kernels.gpu.attention.sides import Cache as Cache
from kernels.gpu.attention.sides import layer_cache as layer_cache
from kernels.gpu.attention.sides import make_cache as make_cache
from kernels.gpu.encoders.encode import encode_blocks as encode_blocks
from kernels.gpu.encoders.encode import encode_e2m1 as encode_e2m1
from kernels.gpu.encoders.encode import encode_float8 as encode_float8
from kernels.gpu.encoders.encode import encode_fp4 as encode_fp4
from kernels.gpu.encoders.encode import encode_groups as encode_groups
from kernels.gpu.encoders.encode import feedback as feedback
from kernels.gpu.encoders.encode import power_scales as power_scales
from kernels.gpu.encoders.encode import tile_amax as tile_amax
from kernels.gpu.products.scaled import ScaledWeights as ScaledWeights
from kernels.gpu.products.scaled import scaled_product as scaled_product
from kernels.gpu.products.scaled import upload_scaled as upload_scaled
from kernels.gpu.steps.apply import Outliers as Outliers
from kernels.gpu.steps.apply import Tokens as Tokens
from kernels.gpu.steps.apply import activate_mul as activate_mul
from kernels.gpu.steps.apply import activate_mul_quantized as activate_mul_quantized
from kernels.gpu.steps.apply import find_outliers as find_outliers
from kernels.gpu.steps.apply import quantize as quantize
from kernels.gpu.steps.apply import rms_norm as rms_norm
from kernels.gpu.steps.apply import rms_norm_quantized as rms_norm_quantized
from kernels.gpu.steps.apply import rotate as rotate
