"""Chat templates of our own, each built from the constructs that one public family uses."""

CHATML = r"""
{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""

# Llama 2: folding the system message into the first user turn, strict alternation, strip().
LLAMA2 = r"""
{% if messages and messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}
{%- for message in loop_messages -%}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- if loop.index0 == 0 and system_message != false -%}
{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %}
{%- else -%}
{% set content = message['content'] %}
{%- endif -%}
{%- if message['role'] == 'user' -%}
{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- elif message['role'] == 'assistant' -%}
{{ ' ' + content.strip() + ' ' + eos_token }}
{%- endif -%}
{%- endfor -%}
"""

# Llama 3: a variable prefixed once, the trim filter.
LLAMA3 = r"""
{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}
"""

# Llama 3.1: defaults by "is not defined", tools in the user turn, tojson(indent=4), dates.
LLAMA31 = r"""
{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{{- "Today: " + date_string + "\n\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("no first user message to put tools into") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\n\n' -}}
    {{- "Functions you may call:\n\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one tool call at a time") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

# Mistral: namespaces counting turns, selectattr over roles, rebuilt dictionaries, ids checked.
MISTRAL = r"""
{%- if messages and messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate user/assistant") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {{- ', "id": "' + tool_call.id|default('none')|string + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id|default('') + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("only user and assistant roles here") }}
    {%- endif %}
{%- endfor %}
"""

# Qwen 2.5: system prompt with <tools>, tool responses grouped by looking at the neighbours.
QWEN25 = r"""
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'A helpful model.' }}
    {%- endif %}
    {{- "\n\n# Tools\n\nSignatures inside <tools></tools>:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\n{\"name\": <name>, \"arguments\": <object>}\n<|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nA helpful model.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

# Qwen 3: walking messages backwards, reasoning cut out of content by split and strip.
QWEN3 = r"""
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == "user" or message.role == "system" %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\n{"name": "' + tool_call.name + '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""

# DeepSeek: one namespace as a state machine, string pieces cut at the end of thinking.
DEEPSEEK = r"""
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='', is_first_sp=true) %}{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + '\n\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and 'tool_calls' in message %}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls'] %}{%- if not ns.is_first %}{%- if message['content'] is none %}{{'<｜Assistant｜><｜calls｜>' + tool['type'] + '<｜sep｜>' + tool['function']['name'] + '\n' + '```json' + '\n' + tool['function']['arguments']|string + '\n' + '```'}}{%- else %}{{'<｜Assistant｜>' + message['content'] + '<｜calls｜>' + tool['type'] + '<｜sep｜>' + tool['function']['name'] + '\n' + tool['function']['arguments']|tojson}}{%- endif %}{%- set ns.is_first = true -%}{%- else %}{{'\n' + '<｜call｜>' + tool['type'] + '<｜sep｜>' + tool['function']['name']}}{%- endif %}{%- endfor %}{{'<｜end｜>'}}{%- endif %}{%- if message['role'] == 'assistant' and 'tool_calls' not in message %}{%- if ns.is_tool %}{{'<｜outputs end｜>' + message['content'] + '<｜end｜>'}}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + '<｜end｜>'}}{%- endif %}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<｜outputs begin｜>' + message['content'] + '<｜output end｜>'}}{%- set ns.is_output_first = false %}{%- else %}{{'\n<｜output begin｜>' + message['content'] + '<｜output end｜>'}}{%- endif %}{%- endif %}{%- endfor -%}{% if ns.is_tool %}{{'<｜outputs end｜>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜><think>\n'}}{% endif %}
"""

# Gemma: roles renamed, inline-if prefixes, content lists walked with is string / is iterable.
GEMMA = r"""
{{ bos_token }}
{%- if messages and messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
"""

PHI = r"""
{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'user' %}{{'<|user|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>
' + message['content'] + '<|end|>
'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>
' }}{% else %}{{ eos_token }}{% endif %}
"""

# Command R: tools as Python signatures, type names mapped by a macro, documents, regrouping.
COMMAND_R = r"""
{%- macro py_type(spec) -%}
{%- set names = {'string': 'str', 'number': 'float', 'integer': 'int', 'boolean': 'bool', 'object': 'Dict', 'array': 'List'} -%}
{%- if spec.type is defined and spec.type is string -%}{{ names[spec.type]|default(spec.type|title) }}
{%- elif spec.type is iterable and spec.type is not mapping -%}Union[{{ spec.type|map('replace', 'null', 'None')|join(', ') }}]
{%- else -%}Any{%- endif -%}
{%- endmacro -%}
{{ bos_token }}
{%- if messages and messages[0].role == 'system' %}{% set preamble = messages[0].content|trim %}{% set messages = messages[1:] %}{% else %}{% set preamble = 'Preamble.' %}{% endif %}
{{- '<|START|><|SYSTEM|>' ~ preamble }}
{%- if tools %}
{% for tool in tools %}
```python
def {{ tool.function.name }}({% for name, spec in tool.function.parameters.properties|default({})|items %}{{ name }}: {{ py_type(spec) }}{{ ' = ' ~ spec.default if spec.default is defined else (' = None' if name not in tool.function.parameters.required|default([])) }}{% if not loop.last %}, {% endif %}{% endfor %}) -> {{ py_type(tool.function.return|default({})) }}:
    '''{{ tool.function.description|indent(4) or 'None' }}'''
    pass
```
{%- endfor %}
{%- endif %}
{%- if documents %}{% for doc in documents %}{{ '\nDocument: ' ~ loop.index0 }}{% for k, v in doc|dictsort %}{{ '\n' ~ k|capitalize ~ ': ' ~ v }}{% endfor %}{% endfor %}{% endif %}
{{- '<|END|>' }}
{%- set groups = namespace(last='') %}
{%- for m in messages %}
{%- if m.role|lower in ['user', 'assistant', 'tool'] %}
{{- '<|START|><|' ~ {'user': 'USER', 'assistant': 'CHATBOT', 'tool': 'SYSTEM'}[m.role] ~ '|>' if m.role != groups.last }}
{%- set groups.last = m.role %}
{%- if m.tool_calls %}{{ 'Action: ' }}{% for c in m.tool_calls %}{{ {'tool_name': c.function.name, 'parameters': c.function.arguments}|tojson(indent=4)|indent(2) }}{{ ',' if not loop.last }}{% endfor %}
{%- else %}{{ m.content|string|trim }}{% endif %}
{{- '<|END|>' if loop.last or loop.nextitem.role != m.role }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|START|><|CHATBOT|>' }}{% endif %}
"""

# Hermes tool use: a recursive macro over JSON schema.
HERMES = r"""
{%- macro json_to_python_type(json_spec) %}
    {%- set basic_type_map = {"string": "str", "number": "float", "integer": "int", "boolean": "bool"} %}
    {%- if json_spec.type is not string %}
        {{- "Union[" + json_spec.type|join(",") + "]" if json_spec.type else "Any" }}
    {%- elif basic_type_map[json_spec.type] is defined %}
        {{- basic_type_map[json_spec.type] }}
    {%- elif json_spec.type == "array" %}
        {{- "list[" +  json_to_python_type(json_spec['items']) + "]" }}
    {%- elif json_spec.type == "object" %}
        {%- if json_spec.additionalProperties is defined %}
            {{- "dict[str, " + json_to_python_type(json_spec.additionalProperties) + ']' }}
        {%- else %}
            {{- "dict" }}
        {%- endif %}
    {%- else %}
        {{- "Any" }}
    {%- endif %}
{%- endmacro %}
{{- '<|im_start|>system\n<tools> ' }}
{%- for tool in tools or [] %}
    {%- if tool.function is defined %}
        {%- set tool = tool.function %}
    {%- endif %}
    {{- '{"type": "function", "function": ' }}
    {{- '{"name": "' + tool.name + '", ' }}
    {{- '"description": "' + tool.name + '(' }}
    {%- for param_name, param_fields in tool.parameters.properties|items %}
        {{- param_name + ": " + json_to_python_type(param_fields) }}
        {%- if not loop.last %}
            {{- ", " }}
        {%- endif %}
    {%- endfor %}
    {{- ")" }}
    {%- if tool.return is defined %}
        {{- " -> " + json_to_python_type(tool.return) }}
    {%- endif %}
    {{- " - " + tool.description + "\n\n" }}
    {%- for param_name, param_fields in tool.parameters.properties|items %}
        {%- if loop.first %}
            {{- "    Args:\n" }}
        {%- endif %}
        {{- "        " + param_name + "(" + json_to_python_type(param_fields) + "): " + (param_fields.description|default('-'))|trim }}
    {%- endfor %}
    {{- '", "parameters": ' }}
    {%- if tool.parameters.properties | length == 0 %}
        {{- "{}" }}
    {%- else %}
        {{- tool.parameters|tojson }}
    {%- endif %}
    {{- "}" }}
    {%- if not loop.last %}
        {{- "\n" }}
    {%- endif %}
{%- endfor %}
{{- " </tools><|im_end|>\n" }}
{%- for message in messages %}
    {%- if message.role == "user" or message.role == "system" or (message.role == "assistant" and message.tool_calls is not defined) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {{- '\n<tool_call>\n' }}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '{' }}{{- '"name": "' }}{{- tool_call.name }}{{- '"' }}{{- ', '}}
            {%- if tool_call.arguments is defined %}
                {{- '"arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments|tojson }}{%- endif %}
            {%- endif %}
            {{- '}' }}{{- '\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}
            {{- '<|im_start|>tool\n' }}
        {%- endif %}
        {{- '<tool_response>\n' }}{{- message.content }}
        {%- if not loop.last %}{{- '\n</tool_response>\n' }}{%- else %}{{- '\n</tool_response>' }}{%- endif %}
        {%- if not loop.last and loop.nextitem.role != "tool" %}
            {{- '<|im_end|>' }}
        {%- elif loop.last %}
            {{- '<|im_end|>' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

# gpt-oss: several macros with default arguments, TypeScript types, loop state in a namespace.
GPT_OSS = r"""
{#- types #}
{%- macro render_type(spec, required_params, is_nullable=false) -%}
    {%- if spec.type == "array" -%}
        {%- if spec['items'] -%}
            {%- if spec['items']['type'] == "string" -%}{{- "string[]" }}
            {%- elif spec['items']['type'] in ("number", "integer") -%}{{- "number[]" }}
            {%- else -%}
                {%- set inner_type = render_type(spec['items'], required_params) -%}
                {%- if inner_type == "object | object" or inner_type|length > 50 -%}{{- "any[]" }}
                {%- else -%}{{- inner_type + "[]" }}{%- endif -%}
            {%- endif -%}
            {%- if spec.nullable -%}{{- " | null" }}{%- endif -%}
        {%- else -%}{{- "any[]" }}{%- endif -%}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type is not mapping and spec.type[0] is defined -%}
        {%- if spec.type | length > 1 -%}{{- spec.type | join(" | ") }}{%- else -%}{{- spec.type[0] }}{%- endif -%}
    {%- elif spec.oneOf -%}
        {%- for variant in spec.oneOf -%}{{- render_type(variant, required_params) -}}{%- if not loop.last %}{{- " | " }}{% endif -%}{%- endfor -%}
    {%- elif spec.type == "string" -%}
        {%- if spec.enum -%}{{- '"' + spec.enum|join('" | "') + '"' -}}{%- else -%}{{- "string" }}{%- if spec.nullable %}{{- " | null" }}{%- endif -%}{%- endif -%}
    {%- elif spec.type in ["number", "integer"] -%}{{- "number" }}
    {%- elif spec.type == "boolean" -%}{{- "boolean" }}
    {%- elif spec.type == "object" -%}
        {%- if spec.properties -%}
            {{- "{\n" }}
            {%- for prop_name, prop_spec in spec.properties.items() -%}
                {{- prop_name -}}
                {%- if prop_name not in (spec.required or []) -%}{{- "?" }}{%- endif -%}
                {{- ": " }}{{ render_type(prop_spec, spec.required or []) }}
                {%- if not loop.last -%}{{-", " }}{%- endif -%}
            {%- endfor -%}
            {{- "}" }}
        {%- else -%}{{- "object" }}{%- endif -%}
    {%- else -%}{{- "any" }}{%- endif -%}
{%- endmacro -%}
{%- macro render_namespace(name, tools) -%}
    {{- "## " + name + "\n\n" }}{{- "namespace " + name + " {\n\n" }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- "// " + tool.description + "\n" }}{{- "type "+ tool.name + " = " }}
        {%- if tool.parameters and tool.parameters.properties %}
            {{- "(_: {\n" }}
            {%- for param_name, param_spec in tool.parameters.properties.items() %}
                {%- if param_spec.description %}{{- "// " + param_spec.description + "\n" }}{%- endif %}
                {{- param_name }}{%- if param_name not in (tool.parameters.required or []) -%}{{- "?" }}{%- endif -%}{{- ": " }}{{- render_type(param_spec, tool.parameters.required or []) }}
                {%- if param_spec.default is defined -%}
                    {%- if param_spec.enum %}{{- ", // default: " + param_spec.default }}{%- elif param_spec.oneOf %}{{- "// default: " + param_spec.default }}{%- else %}{{- ", // default: " + param_spec.default|tojson }}{%- endif -%}
                {%- endif -%}
                {%- if not loop.last %}{{- ",\n" }}{%- else %}{{- ",\n" }}{%- endif -%}
            {%- endfor %}
            {{- "}) => any;\n\n" }}
        {%- else -%}{{- "() => any;\n\n" }}{%- endif -%}
    {%- endfor %}
    {{- "} // namespace " + name }}
{%- endmacro -%}
{%- macro build_system_message() -%}
    {%- if model_identity is not defined %}{%- set model_identity = "A language model." %}{%- endif %}
    {{- model_identity + "\n" }}{{- "Current date: " + strftime_now("%Y-%m-%d") + "\n\n" }}
    {%- if reasoning_effort is not defined %}{%- set reasoning_effort = "medium" %}{%- endif %}
    {{- "Reasoning: " + reasoning_effort + "\n\n" }}
{%- endmacro -%}
{{- "<|start|>system<|message|>" }}{{- build_system_message() }}{{- "<|end|>" }}
{%- if messages and messages[0].role in ("developer", "system") %}
    {%- set developer_message = messages[0].content %}{%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set developer_message = "" %}{%- set loop_messages = messages %}
{%- endif %}
{%- if developer_message or tools %}
    {{- "<|start|>developer<|message|>" }}
    {%- if developer_message %}{{- "# Instructions\n\n" }}{{- developer_message }}{%- endif %}
    {%- if tools -%}{{- "\n\n" }}{{- "# Tools\n\n" }}{{- render_namespace("functions", tools) }}{%- endif -%}
    {{- "<|end|>" }}
{%- endif %}
{%- set last_tool_call = namespace(name=none) %}
{%- for message in loop_messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if "tool_calls" in message %}
            {%- set future_final_message = namespace(found=false) %}
            {%- for future_message in loop_messages[loop.index:] %}
                {%- if future_message.role == 'assistant' and "tool_calls" not in future_message %}{%- set future_final_message.found = true %}{%- endif %}
            {%- endfor %}
            {%- set tool_call = message.tool_calls[0] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {%- if message.content and not future_final_message.found %}{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.content + "<|end|>" }}{%- endif %}
            {{- "<|start|>assistant to=" }}{{- "functions." + tool_call.name + "<|channel|>commentary json<|message|>" }}{{- tool_call.arguments|tojson }}{{- "<|call|>" }}
            {%- set last_tool_call.name = tool_call.name %}
        {%- elif loop.last and not add_generation_prompt %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
            {%- set last_tool_call.name = none %}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if last_tool_call.name is none %}{{- raise_exception("tool message without a call before it") }}{%- endif %}
        {{- "<|start|>functions." + last_tool_call.name }}{{- " to=assistant<|message|>" + message.content|tojson + "<|end|>" }}
    {%- elif message.role == 'user' -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}
"""

# SmolLM: string tests on the system prompt, replace, generation blocks.
SMOLLM = r"""
{%- set reasoning_mode = "/think" -%}
{%- if messages and messages[0].role == "system" -%}
  {%- set system_message = messages[0].content -%}
  {%- if "/no_think" in system_message -%}
    {%- set reasoning_mode = "/no_think" -%}
  {%- endif -%}
  {%- set custom_instructions = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{{- "<|im_start|>system\n" -}}
{{- "## Metadata\n\nReasoning Mode: " + reasoning_mode + "\n\n" -}}
{%- if custom_instructions -%}{{- custom_instructions + "\n\n" -}}{%- else -%}{{- "Default.\n\n" -}}{%- endif -%}
{%- if tools -%}{%- set ns = namespace(text="") -%}{%- for tool in tools -%}{%- set ns.text = ns.text + (tool | string) + "\n" -%}{%- endfor -%}{{- ns.text -}}{%- endif -%}
{{- "<|im_end|>\n" -}}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}
        {{ "<|im_start|>" + message.role + "\n"  + content + "<|im_end|>\n" }}
    {%- elif message.role == "assistant" -%}
        {% generation %}
        {%- if reasoning_mode == "/think" -%}
            {{ "<|im_start|>assistant\n" + content.lstrip("\n") + "<|im_end|>\n" }}
        {%- else -%}
            {{ "<|im_start|>assistant\n" + "<think>\n\n</think>\n" + content.lstrip("\n") + "<|im_end|>\n" }}
        {%- endif -%}
        {% endgeneration %}
    {%- elif message.role == "tool" -%}
    {{ "<|im_start|>" + "user\n"  + content + "<|im_end|>\n" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ "<|im_start|>assistant\n" + ("<think>\n\n</think>\n" if reasoning_mode == "/no_think" else "") }}
{%- endif -%}
"""

# MiniMax M3's rules, spec/frontend.md section 2.2, in our own words.
MINIMAX_M3 = r"""
{%- set NS = ']<]minimax[>[' -%}
{%- macro parts(content) -%}
    {%- if content is string -%}{{ content }}
    {%- elif content is none -%}
    {%- elif content is iterable and content is not mapping -%}
        {%- for part in content -%}
            {%- if part is string -%}{{ part }}
            {%- elif part.type == 'text' -%}{{ part.text }}
            {%- elif part.type == 'image' -%}{{ ']<]image[>[' }}
            {%- elif part.type == 'video' -%}{{ ']<]video[>[' }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}{{ content }}{%- endif -%}
{%- endmacro -%}
{%- macro element(value) -%}
    {%- if value is mapping -%}
        {%- for key, item in value.items() if item is not none -%}
            {{ NS ~ '<' ~ key ~ '>' ~ element(item) ~ NS ~ '</' ~ key ~ '>' }}
        {%- endfor -%}
    {%- elif value is iterable and value is not string -%}
        {%- for item in value -%}{{ NS ~ '<item>' ~ element(item) ~ NS ~ '</item>' }}{%- endfor -%}
    {%- elif value is boolean -%}{{ 'true' if value else 'false' }}
    {%- else -%}{{ value }}{%- endif -%}
{%- endmacro -%}
{%- set state = namespace(first=0, developer=model_identity|default('You are a model.'), identity='Identity.', called=false) -%}
{%- if messages[0] is defined and messages[0].role == 'root' -%}
    {%- set state.identity = parts(messages[0].content) -%}{%- set state.first = 1 -%}
{%- endif -%}
{%- set rest = messages[state.first:] -%}
{%- if rest and rest[0].role in ['system', 'developer'] -%}
    {%- set state.developer = parts(rest[0].content) -%}{%- set rest = rest[1:] -%}
{%- endif -%}
{{ ']~!b[]~b]system\n' ~ state.identity ~ '\n\n<thinking_instructions>\nUse <mm:think></mm:think>.\n' }}
{%- if thinking_mode is not defined or thinking_mode == 'adaptive' -%}{{ 'Adaptive.\n' }}
{%- elif thinking_mode == 'enabled' -%}{{ 'Always.\n' }}
{%- elif thinking_mode == 'disabled' -%}{{ 'Never.\n' }}
{%- endif -%}
{{ '</thinking_instructions>[e~[\n]~b]developer\n' ~ state.developer }}
{%- if tools -%}
    {{ '\n\n# Tools\nYou may call:\n\n<tools>\n' }}
    {%- for tool in tools -%}{{ '<tool>' ~ tool.function|tojson(ensure_ascii=False) ~ '</tool>\n' }}{%- endfor -%}
    {{ '</tools>\n\nFormat:\n' ~ NS ~ '<tool_call>' }}
{%- endif -%}
{{ '[e~[\n' }}
{%- for message in rest -%}
    {%- if message.role == 'user' -%}{{ ']~b]user\n' ~ parts(message.content) ~ '[e~[\n' }}
    {%- elif message.role == 'assistant' -%}
        {%- set content = parts(message.content) -%}
        {%- set reasoning = '' -%}
        {%- if message.reasoning_content is string -%}{%- set reasoning = message.reasoning_content -%}
        {%- elif '</mm:think>' in content -%}
            {%- set reasoning = content.split('</mm:think>')[0].split('<mm:think>')[-1].strip('\n') -%}
            {%- set content = content.split('</mm:think>')[-1].strip('\n') -%}
        {%- endif -%}
        {{ ']~b]ai\n' ~ ('<mm:think>' ~ reasoning if reasoning) ~ '</mm:think>' ~ content }}
        {%- if message.tool_calls -%}
            {{ NS ~ '<tool_call>\n' }}
            {%- for call in message.tool_calls -%}
                {%- set call = call.function or call -%}
                {{ NS ~ '<invoke name="' ~ call.name ~ '">' ~ element(call.arguments) ~ NS ~ '</invoke>\n' }}
            {%- endfor -%}
            {{ NS ~ '</tool_call>' }}
        {%- endif -%}
        {%- set state.called = message.tool_calls is defined -%}
        {{ '[e~[\n' }}
    {%- elif message.role == 'tool' -%}
        {%- if not state.called -%}{{ raise_exception('a tool result needs a call before it') }}{%- endif -%}
        {%- if loop.first or rest[loop.index0 - 1].role != 'tool' -%}{{ ']~b]tool' }}{%- endif -%}
        {{ '\n<response>' }}
        {%- if message.content is string -%}{{ message.content }}
        {%- else -%}
            {%- for part in message.content -%}{{ part.output or part.text or part }}{%- endfor -%}
        {%- endif -%}
        {{ '</response>' }}
        {%- if loop.last or rest[loop.index0 + 1].role != 'tool' -%}{{ '[e~[\n' }}{%- endif -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ ']~b]ai\n' ~ {'disabled': '</mm:think>', 'enabled': '<mm:think>'}[thinking_mode|default('')]|default('') }}
{%- endif -%}
"""

TEMPLATES = {
    name.lower(): source.strip("\n")
    for name, source in list(globals().items())
    if name.isupper() and isinstance(source, str)
}
